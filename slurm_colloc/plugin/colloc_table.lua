-- SPDX-License-Identifier: Apache-2.0
--[[
What is known of jobs, as 'colloc policy table' wrote it: one text of records of one length, sorted by key, of which
nothing is parsed but the record that is found. A table that is broken, cut short, too large, too old or of another
version is not used, and the log says so once. For Lua 5.1, 5.3 and 5.4.
]]

local M = { VERSION = 1 }

M.HEADER_BYTES, M.RECORD_BYTES, M.KEY_BYTES = 64, 69, 32
M.MOST_BYTES = 16 * 1024 * 1024
M.MOST_NAME_BYTES, M.MOST_FOLDER_BYTES = 256, 1024
M.REFRESH_S = 60
local AHEAD_S, DAY_S = 86400, 86400
local MAX_AGE_DAYS = 14

-- Below 2^44, so that no step of the hash passes 2^53, where doubles stop being exact.
local HASHES = { { 17592186044399, 257 }, { 17592186044299, 263 } }

local function hashed(text, modulus, factor)
   local hash = 1
   for at = 1, #text do
      -- fmod is exact in every Lua; the % of 5.1 divides.
      hash = math.fmod(hash * factor + string.byte(text, at), modulus)
   end
   return string.format("%011x", hash)
end

function M.hash(text)
   return hashed(text, HASHES[1][1], HASHES[1][2]) .. hashed(text, HASHES[2][1], HASHES[2][2])
end

-- What a job is known by: the uid stands in it as it is, so that who forges another's hash forges his own.
function M.key(uid, name, folder)
   local known = type(uid) == "number" and uid >= 0 and uid <= 4294967295 and uid == math.floor(uid)
   if not known or type(name) ~= "string" or type(folder) ~= "string" then return nil end
   if #name > M.MOST_NAME_BYTES or #folder > M.MOST_FOLDER_BYTES then return nil end
   -- As accounting has them.
   local known_by = string.gsub(name .. "\0" .. folder, '"', "`")
   return string.format("%010d", uid) .. M.hash(known_by)
end

-- Return when a table was made and its number of records, or nil and why it is not used.
function M.read_header(header, size, now)
   if size > M.MOST_BYTES then return nil, "it is larger than " .. M.MOST_BYTES .. " bytes" end
   local version, made, count = string.match(header or "", "^colloc%-policy%-table (%d+) (%d+) (%d+) %x+ *\n$")
   if not version then return nil, "it does not begin as a table of known jobs" end
   if tonumber(version) ~= M.VERSION then return nil, "it is of version " .. version .. ", not " .. M.VERSION end
   made, count = tonumber(made), tonumber(count)
   if size ~= M.HEADER_BYTES + count * M.RECORD_BYTES then return nil, "its length is not that of its records" end
   if made > now + AHEAD_S then return nil, "it was made in the future: are the clocks right?" end
   if now - made > MAX_AGE_DAYS * DAY_S then
      return nil, "it is older than " .. MAX_AGE_DAYS .. " days: does 'colloc policy table' still run?"
   end
   return made, count
end

-- Return the record of a key, or nil: binary search over the text, nothing of which is parsed but what is found.
function M.find(text, key)
   local low, high = 0, (#text - M.HEADER_BYTES) / M.RECORD_BYTES - 1
   while low <= high do
      local middle = math.floor((low + high) / 2)
      local at = M.HEADER_BYTES + middle * M.RECORD_BYTES
      local there = string.sub(text, at + 1, at + M.KEY_BYTES)
      if there == key then
         local mem, sm, minutes, runs, model =
            string.match(string.sub(text, at + M.KEY_BYTES + 1, at + M.RECORD_BYTES), "^ (%d+) (%d+) (%d+) (%d+) (%x+)\n$")
         if not mem then return nil end
         return {
            mem_mib = tonumber(mem), sm_pct = tonumber(sm), minutes = tonumber(minutes),
            runs = tonumber(runs), model = model,
         }
      elseif there < key then
         low = middle + 1
      else
         high = middle - 1
      end
   end
   return nil
end

-- Return a function (key, now) -> what is known, over a file that is looked at again every minute and read when it is
-- another: its header has a checksum. Nothing but this reads a file once Slurm has loaded these.
function M.open(path, log)
   local state = {}

   local function leave(why)
      state.text, state.header = nil, nil
      if why ~= state.said then log("known jobs are not used: '" .. path .. "': " .. why) end
      state.said = why
   end

   local function read(file, now)
      local header, size = file:read(M.HEADER_BYTES), file:seek("end")
      local made, count = M.read_header(header, size, now)
      if not made then return leave(count) end
      if state.text and header == state.header then return end
      state.text = nil -- never two at once
      collectgarbage("collect")
      file:seek("set", 0)
      local text = file:read(size)
      if not text or #text ~= size or string.sub(text, 1, M.HEADER_BYTES) ~= header then
         return leave("it could not be read whole")
      end
      state.text, state.header, state.said = text, header, nil
      log("known jobs: " .. count .. " from '" .. path .. "'")
   end

   local function look(now)
      local file, why = io.open(path, "rb")
      if not file then return leave(tostring(why)) end
      local ok, wrong = pcall(read, file, now)
      file:close()
      if not ok then leave(tostring(wrong)) end
   end

   return function(key, now)
      if not state.looked or now < state.looked or now - state.looked >= M.REFRESH_S then
         state.looked = now
         look(now)
      end
      return state.text and key and M.find(state.text, key) or nil
   end
end

return M
