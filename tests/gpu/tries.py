# SPDX-License-Identifier: Apache-2.0
"""Programs of one user beside those of others: what they take, leave, look for and break, said in a line of JSON."""

from tests.gpu.mps import PTX

# A process of the driver's own interface begins in a tenth of a second.
CUDA = """
import ctypes, json, sys, time
cuda, context, held = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), []
found = {"init": cuda.cuInit(0)}
found["context"] = cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
def take(mib):
    pointer = ctypes.c_uint64()
    if cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(mib << 20)):
        return False
    held.append(pointer)
    return True
"""
_SAYS = "print(json.dumps(found), flush=True)\nsys.stdin.readline()\n"
TOUCH = f"{CUDA}found['took'] = take(64)\n{_SAYS}"
GREEDY_MIB = 320 * 64
GREEDY = f"{CUDA}while len(held) < 320 and take(64): pass\nfound['mib'] = 64 * len(held)\n{_SAYS}"
WRITES = f"""{CUDA}
for _ in range(64):
    take(64)
    cuda.cuMemsetD8_v2(held[-1], ctypes.c_ubyte(0xA7), ctypes.c_size_t(64 << 20))
cuda.cuCtxSynchronize()
found["wrote_mib"] = 64 * len(held)
print(json.dumps(found), flush=True)
"""
READS = f"""{CUDA}
page, same = (ctypes.c_ubyte * 65536)(), 0
while len(held) < 192 and take(64):
    cuda.cuMemcpyDtoH_v2(page, held[-1], ctypes.c_size_t(65536))
    same += bytes(page).count(0xA7) > 60000
found |= dict(looked_at=len(held), had_anothers_bytes=same)
{_SAYS}"""
ILLEGAL = f"""{CUDA}
module, function = ctypes.c_void_p(), ctypes.c_void_p()
found["load"] = cuda.cuModuleLoadData(ctypes.byref(module), b"{PTX}")
found["get"] = cuda.cuModuleGetFunction(ctypes.byref(function), module, b"bad")
found["launch"] = cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
found["end"] = cuda.cuCtxSynchronize()
{_SAYS}"""
# What a user's program does with a pipe folder that is not his, its name in argv[1].
TRIES = """
import errno, fcntl, glob, json, os, socket, sys
pipe, found = sys.argv[1], {}
def tried(what, does):
    try:
        found[what] = str(does())[:80]
    except OSError as error:
        found[what] = errno.errorcode[error.errno]
def connect(name):
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); line.connect(f"{pipe}/{name}"); return "connected"
tried("list the pipe folder", lambda: os.listdir(pipe))
tried("make a file in it", lambda: os.open(f"{pipe}/x", os.O_CREAT | os.O_WRONLY))
tried("remove its control socket", lambda: os.unlink(f"{pipe}/control"))
tried("write its pid file", lambda: os.open(f"{pipe}/nvidia-cuda-mps-control.pid", os.O_WRONLY))
tried("open its lock to write", lambda: os.open(f"{pipe}/control_lock", os.O_RDWR))
tried("open its log pipe to write", lambda: os.open(f"{pipe}/log", os.O_WRONLY | os.O_NONBLOCK))
tried("connect to control", lambda: connect("control"))
tried("connect to control_privileged", lambda: connect("control_privileged"))
tried("read its log", lambda: os.listdir(os.path.dirname(pipe) + "/log"))
tried("count its jobs", lambda: len(os.listdir(os.path.dirname(pipe) + "/jobs")))
tried("take a job's place", lambda: os.rmdir(glob.glob(os.path.dirname(pipe) + "/jobs/*")[0]))
tried("signal the daemon", lambda: os.kill(int(open(f"{pipe}/nvidia-cuda-mps-control.pid").read()), 9))
print(json.dumps(found))
"""
# Holds what others may need, until told to end.
HOLDS = {
    "its lock (flock)": "import fcntl, os; f = os.open(sys.argv[1] + '/control_lock', os.O_RDWR); "
    "fcntl.flock(f, fcntl.LOCK_EX)",
    "its lock (lockf)": "import fcntl, os; f = os.open(sys.argv[1] + '/control_lock', os.O_RDWR); "
    "fcntl.lockf(f, fcntl.LOCK_EX)",
    **{
        f"{count} silent connections": "import socket\n"
        f"held = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range({count})]\n"
        "for one in held: one.settimeout(1); one.connect(sys.argv[1] + '/control')"
        for count in (1, 8, 64)
    },
}
# Writes to the pipe by which a daemon takes what is to be logged.
FLOOD = """
import os, sys
log = os.open(sys.argv[1] + "/log", os.O_WRONLY)
for _ in range(2000):
    os.write(log, b"x" * 999 + b"\\n")
"""
