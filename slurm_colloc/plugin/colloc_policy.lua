-- SPDX-License-Identifier: Apache-2.0
--[[
What a site's own job_submit.lua and cli_filter.lua call (docs/how-to/plugins.md): whether a job that asks for one whole
GPU would do with a slice of one, by what its earlier runs used, and what the site wants done about that.

For Lua 5.1, 5.3 and 5.4: no integer division, no bit operators, no goto. Whatever goes wrong in here leaves the job as
it was. What differs from site to site is handed in by colloc.lua; what is known of jobs, by colloc_table.lua.
]]

local M = {}

-- What a user writes may be as long as a message of Slurm's, and slurmctld waits for us.
local MOST_TEXT, MOST_WISH, MOST_REQUEST, MOST_SCRIPT = 160, 1024, 256, 65536
local NO_VAL, NO_VAL16 = 4294967294, 65534

-- Words --------------------------------------------------------------------------------------------------------------

-- Printable ASCII of bounded length: it goes into logs, onto terminals and into accounting.
function M.printable(text, most)
   text = string.sub(tostring(text), 1, most or MOST_TEXT)
   return (string.gsub(text, "[^\32-\126]", "?"))
end

local function given(value)
   return type(value) == "string" and value ~= "" and value ~= "unset" and value ~= "invalid-context"
end

-- Of a number: not given, or no more than one.
local function one_at_most(value)
   return value == nil or value == NO_VAL or value == NO_VAL16 or value == 0 or value == 1
end

-- A count that was asked for; 0 of one that was not, which Slurm writes as NO_VAL, 16, 32 or 64 bits of it.
local function asked(value)
   return (type(value) == "number" and value < NO_VAL16) and value or 0
end

-- Of a field that Slurm may not know, or not give.
local function field(from, name)
   local ok, value = pcall(function() return from[name] end)
   if ok then return value end
   return nil
end

-- What the job says -----------------------------------------------------------------------------------------------------

-- Return "auto", "off", or "exclusive" with its reason, without which it is nothing.
local function read_wish(text)
   local reason = string.match(text, "^exclusive:(.*)$")
   reason = reason and string.match(M.printable(reason), "%S.*")
   if reason then return "exclusive", (string.gsub(reason, "%s+$", "")) end
   local word = string.match(text, "^%a+")
   return (word == "off" or word == "auto") and word or nil
end

-- What --colloc says where it is SPANK's option, as Slurm hands options on: to slurmctld as NAME=VALUE in a list from 0
-- on, to cli_filter by plugin and name. The only reader of either.
function M.colloc_option(from)
   if type(from) ~= "table" then return nil end
   for at = 0, 64 do
      local value = field(from, at)
      local told = type(value) == "string" and string.match(string.sub(value, 1, MOST_WISH), "OPTION_colloc_colloc=(.*)$")
      if told then return told end
   end
   local plugin = field(from, "colloc")
   if type(plugin) == "table" then plugin = field(plugin, "colloc") end
   return given(plugin) and plugin or nil
end

-- What csub hands on of its own submissions, or nil: it names the job that it was called in, lest a job's own
-- submissions inherit its wish.
function M.told(environment)
   local line = string.sub(tostring(field(environment, "SLURM_COLLOC")), 1, MOST_WISH)
   local job_id, wish = string.match(line, "^(%d+) (.*)$")
   if job_id == (field(environment, "SLURM_JOB_ID") or "0") then return wish end
   return nil
end

-- Return what is wished: the option counts, then csub's, then what the comment says last.
function M.wish(comment, option, told)
   if option then return read_wish(option) end
   local said = told and read_wish(told)
   if said and said ~= "auto" then return read_wish(told) end
   local last = given(comment) and string.match(" " .. string.sub(comment, -MOST_WISH), "^.*[^%w_]colloc=(.*)$")
   if last then return read_wish(last) end
   return nil
end

-- Return prefix and type of a request for one GPU ("gres:gpu:1", "gres/gpu:h100:1"); nil of any other.
function M.one_gpu(request)
   if not given(request) or #request > MOST_REQUEST then return nil end
   local prefix, rest = string.match(request, "^(gres[:/])gpu(.*)$")
   if not prefix then return nil end
   if rest == "" or rest == ":1" then return prefix, "" end
   local kind = string.match(rest, "^:([%w%._%-]+):1$") or string.match(rest, "^:([%w%._%-]+)$")
   if kind and not string.find(kind, "^%d+$") then return prefix, kind end
   return nil
end

local function is_in(list, wanted)
   for _, value in ipairs(list) do
      if value == wanted then return true end
   end
   return false
end

-- Fields that say where a job may run, or tie more to its GPU: a job with any of them is not understood.
local TIES = {
   "tres_per_socket", "tres_freq", "cpus_per_tres", "mem_per_tres", "features", "prefer", "req_nodes", "exc_nodes",
   "reservation", "burst_buffer",
}
-- What --exclusive makes of the field "shared": the node is wanted, not a part of it.
local WHOLE_NODE = 0
-- What --gres-flags=enforce-binding makes of the field "bitflags", on each release: cores near that GPU are wanted.
local ENFORCE_BINDING = 16

-- Return the CPUs and the MiB of a node that a job asks for by number.
local function of_node(job_desc)
   local cpus = 1
   for _, name in ipairs({ "min_cpus", "cpus_per_task", "pn_min_cpus" }) do
      cpus = math.max(cpus, asked(field(job_desc, name)))
   end
   local whole, each = field(job_desc, "min_mem_per_node"), field(job_desc, "min_mem_per_cpu")
   local host_mib = type(whole) == "number" and whole or type(each) == "number" and each * cpus or 0
   return cpus, host_mib < NO_VAL and host_mib or 0
end

-- Return the job as far as it matters here, or nil where it is anything but one whole GPU in one partition.
function M.read_job(job_desc, site)
   local per_node, per_job = field(job_desc, "tres_per_node"), field(job_desc, "tres_per_job")
   if given(per_node) == given(per_job) then return nil end
   local prefix, kind = M.one_gpu(given(per_node) and per_node or per_job)
   if not prefix then return nil end
   for _, name in ipairs(TIES) do
      if given(field(job_desc, name)) then return nil end
   end
   if field(job_desc, "shared") == WHOLE_NODE then return nil end
   local flags = field(job_desc, "bitflags")
   if type(flags) == "number" and math.floor(flags / ENFORCE_BINDING) % 2 == 1 then return nil end
   -- Since 23.02 --cpus-per-task is told as a TRES, too.
   local per_task = field(job_desc, "tres_per_task")
   if given(per_task) and not string.find(per_task, "^cpu[:=]%d+$") then return nil end
   for _, name in ipairs({ "num_tasks", "ntasks_per_node", "min_nodes", "max_nodes" }) do
      if not one_at_most(field(job_desc, name)) then return nil end
   end
   local component = field(job_desc, "het_job_offset")
   if component ~= nil and component ~= NO_VAL then return nil end
   local name = field(job_desc, "partition")
   if not given(name) then name = site.default_partition end
   local partition = site.partitions[name]
   -- A type that names no whole GPU of the partition is a slice already, or one that the site protects.
   if not partition or not (kind == "" or is_in(partition.whole, kind)) then return nil end
   local script, argc, called = field(job_desc, "script"), field(job_desc, "argc"), field(job_desc, "name")
   local minutes = field(job_desc, "time_limit")
   if type(minutes) ~= "number" or minutes == NO_VAL then minutes = partition.default_min end
   local cpus, host_mib = of_node(job_desc)
   -- Without a script it is salloc's or srun's; 22.05 gives only srun's words, and salloc's job has a name of its own.
   local command = given(script) and "sbatch" or (argc == 0 or called == "interactive") and "salloc" or "srun"
   return {
      uid = field(job_desc, "user_id"), name = called, folder = field(job_desc, "work_dir"),
      prefix = prefix, style = given(per_node) and "tres_per_node" or "tres_per_job",
      partition = partition, command = command, script = script, minutes = minutes, cpus = cpus, host_mib = host_mib,
      comment = field(job_desc, "comment"), option = M.colloc_option(field(job_desc, "spank_job_env")),
      -- Of others slurmctld has none, and logs an error for each name that is asked for.
      environment = command == "sbatch" and field(job_desc, "environment") or {},
   }
end

-- Return why a request may not be rewritten though the job would do with less; nil where it may.
function M.reason_to_keep(job, piece)
   -- The step of srun asks for what the user typed, whatever the allocation got; cli_filter.lua sees to these.
   if job.command ~= "sbatch" then return "its step would not find what it asks for" end
   if piece.partition then return "that is in another partition" end
   for _, name in ipairs({ "SLURM_GPUS", "SLURM_GPUS_PER_NODE" }) do
      local value = field(job.environment, name)
      if given(value) and (string.find(value, ":", 1, true) or not string.find(piece.gres, "^gpu:")) then
         return "its steps ask for what " .. name .. " says"
      end
   end
   if #job.script > MOST_SCRIPT then return "its script is too long to look through" end
   for line in string.gmatch(job.script, "[^\n]+") do
      if not string.find(line, "^%s*#") and string.find(line, "srun", 1, true) and
         (string.find(line, "gpu", 1, true) or string.find(line, "gres", 1, true)) then
         return "its script says what a step of srun gets"
      end
   end
   return nil
end

-- What is decided ---------------------------------------------------------------------------------------------------------

-- Slurm refuses a job that no node is large enough for, and it knows the type of a slice, not of what node it is.
local function has_room(piece, job)
   return (not piece.cpus or job.cpus <= piece.cpus) and (not piece.host_mib or job.host_mib <= piece.host_mib)
end

-- Return the smallest piece that holds what was used, at most so much slower (slurm_colloc/placement/speed.py), within
-- the time limit; nil where none does.
function M.fitting(use, job, site)
   local need_mib = use.mem_mib + site.headroom_mib
   for _, piece in ipairs(job.partition.pieces) do
      local lacking = use.sm_pct / 100 * (math.max(1, piece.whole_sm / piece.sm) - 1)
      local slowdown = 1 + math.max(0.8 * lacking, lacking - 0.06)
      local needed_min = use.minutes * slowdown
      local in_time = (not job.minutes or needed_min <= job.minutes) and
         (not piece.max_min or needed_min <= piece.max_min)
      if piece.model == use.model and has_room(piece, job) and need_mib <= piece.mem_mib and slowdown <= site.max_slowdown and in_time then
         return piece
      end
   end
   return nil
end

local function is_interactive(job)
   return job.command == "salloc" or (job.command == "sbatch" and is_in(job.partition.names, job.name))
end

local function line_to_type(command, piece)
   local where = piece.partition and (" -p " .. piece.partition) or ""
   return command .. where .. " --gres=" .. piece.gres
end

-- Return {piece, why} for a job that would do with less than a whole GPU; nil where nothing speaks for it.
function M.decide(job, site, look_up, now)
   local gres = job.partition.interactive
   if gres and is_interactive(job) then
      return { piece = { gres = gres }, why = "interactive jobs here get " .. gres }
   end
   local use = look_up(job.uid, job.name, job.folder, now)
   local piece = use and M.fitting(use, job, site)
   if not piece then return nil end
   local why = string.format("%d earlier runs of '%s' need at most %d MiB and %d %% of a GPU's SMs, %s holds that",
      use.runs, M.printable(job.name, 40), use.mem_mib, use.sm_pct, piece.gres)
   return { piece = piece, why = why }
end

local function note(job_desc, text)
   local before = field(job_desc, "admin_comment")
   job_desc.admin_comment = (given(before) and (before .. "; ") or "") .. "colloc:" .. text
end

local function tell(say, text)
   say("%s", "colloc: " .. text)
end

local function tell_refused(say, command, verdict)
   tell(say, verdict.why)
   tell(say, "type: " .. line_to_type(command, verdict.piece))
   tell(say, "or say why it needs a whole GPU: --comment=colloc=exclusive:REASON")
end

-- What a policy does about a job that would do with less; true where the job is refused.
local DEEDS = {}

function DEEDS.shadow(job_desc, _, verdict)
   note(job_desc, "shadow " .. verdict.piece.gres)
end

function DEEDS.advise(_, job, verdict)
   tell(slurm.log_user, verdict.why)
   tell(slurm.log_user, "next time: " .. line_to_type(job.command, verdict.piece))
end

function DEEDS.default(job_desc, job, verdict)
   local keep = M.reason_to_keep(job, verdict.piece)
   if keep then return note(job_desc, "kept, " .. keep) end
   job_desc[job.style] = job.prefix .. verdict.piece.gres
   note(job_desc, "moved to " .. verdict.piece.gres)
   tell(slurm.log_user, verdict.why .. "; moved there, or else: --comment=colloc=off")
end

function DEEDS.enforce(_, job, verdict)
   tell_refused(slurm.log_user, job.command, verdict)
   return true
end

local function judge_job(job_desc, site, look_up)
   local job = M.read_job(job_desc, site)
   if not job then return end
   local policy = job.partition.policy
   local told = M.told(job.environment)
   local wish, reason = M.wish(job.comment, job.option, told)
   if wish == "exclusive" then
      return note(job_desc, "exclusive:" .. reason)
   end
   -- What csub submits it has decided about.
   local decided = wish == "off" or told ~= nil
   if decided and policy ~= "enforce" then return end
   local verdict = M.decide(job, site, look_up, os.time())
   if not verdict then return end
   slurm.log_info("%s", "colloc: uid " .. tostring(job.uid) .. ", " .. policy .. ": " .. verdict.why)
   return DEEDS[policy](job_desc, job, verdict)
end

-- What is typed -----------------------------------------------------------------------------------------------------------

local COMMAND_TIES = {
   "gpus-per-task", "gpus-per-socket", "mem-per-gpu", "constraint", "prefer", "nodelist", "reservation", "gpu-freq",
   "tres-per-task",
}

-- Return the style, the partition and the command of an allocation for a person who waits for it with one whole GPU.
function M.read_command(options, site)
   local command, pty = field(options, "type"), field(options, "pty")
   -- 22.05 says "set" and "unset", 24.11 and 26.05 "" and nil.
   local is_pty = pty ~= nil and pty ~= "unset" and pty ~= "invalid-context"
   if not (command == "salloc" or (command == "srun" and is_pty)) then return nil end
   -- Within a job it is a step, whose allocation is there already.
   if given(os.getenv("SLURM_JOB_ID")) or given(field(options, "jobid")) then return nil end
   for _, name in ipairs(COMMAND_TIES) do
      if given(field(options, name)) then return nil end
   end
   local per_gpu, nodes, tasks = field(options, "cpus-per-gpu"), field(options, "nodes"), field(options, "ntasks")
   if given(per_gpu) and per_gpu ~= "0" then return nil end
   if given(nodes) and nodes ~= "1" and nodes ~= "1-0" and nodes ~= "1-1" then return nil end
   if given(tasks) and tasks ~= "1" then return nil end
   local style
   for _, name in ipairs({ "gres", "gpus", "gpus-per-node" }) do
      if given(field(options, name)) then
         if style then return nil end
         style = name
      end
   end
   local name = field(options, "partition")
   local partition = site.partitions[given(name) and name or site.default_partition]
   if not style or not partition or not partition.interactive then return nil end
   local asked = field(options, style)
   local prefix, kind = M.one_gpu(style == "gres" and asked or "gres:gpu:" .. asked)
   if not prefix or not (kind == "" or is_in(partition.whole, kind)) then return nil end
   return style, partition, command
end

local function judge_command(options, site)
   local style, partition, command = M.read_command(options, site)
   if not style then return end
   local policy, gres = partition.policy, partition.interactive
   local wish = M.wish(field(options, "comment"), M.colloc_option(field(options, "spank")))
   if wish == "exclusive" or (wish == "off" and policy ~= "enforce") then return end
   local slice = string.match(gres, "^gpu:(.+)$")
   if policy == "default" and (style == "gres" or slice) then
      options[style] = style == "gres" and gres or slice
      return tell(slurm.log_info, "interactive jobs here get " .. gres .. ", or else: --comment=colloc=off")
   end
   -- Of salloc slurmctld knows as much, and nobody gets past it.
   if command == "salloc" then return end
   local verdict = { piece = { gres = gres }, why = "interactive jobs here get " .. gres }
   if policy == "enforce" then
      tell_refused(slurm.log_error, "srun --pty", verdict)
      return true
   end
   if policy == "advise" then tell(slurm.log_info, "next time: " .. line_to_type("srun --pty", verdict.piece)) end
end

-- Return what slurm_job_submit and slurm_cli_pre_submit call: neither raises, and both say slurm.ERROR to refuse.
function M.new(site, known)
   local function log(text)
      slurm.log_info("%s", "colloc: " .. M.printable(text))
   end
   local find = known.open(site.table_path, log)

   local function look_up(uid, name, folder, now)
      return find(known.key(uid, name, folder), now)
   end

   local function safely(judge, ...)
      local ok, refused = pcall(judge, ...)
      if not ok then pcall(log, "a job is left alone: " .. tostring(refused)) end
      return (ok and refused) and slurm.ERROR or slurm.SUCCESS
   end

   return {
      job_submit = function(job_desc) return safely(judge_job, job_desc, site, look_up) end,
      cli_filter = function(options) return safely(judge_command, options, site) end,
   }
end

return M
