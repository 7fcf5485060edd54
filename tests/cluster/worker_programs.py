"""What workers of the transfer tests do with their workspace, as text for ``python3 -c``."""

from pathlib import Path

TREE = Path(__file__).with_name("tree_digest.py").read_text()

MODES = (0o600, 0o000, 0o755, 0o444)

TELL = """
import json
def tell(**said):
    with open("/run/job/output/result.json", "w") as file:
        json.dump(said, file)
"""

DIGEST = f"{TREE}{TELL}\ntell(before=digest('/workspace'))\n"
"""Changes nothing."""

CHANGE_EVERYTHING = f"""{TREE}{TELL}
MODES = {MODES}
def change(path, mode):
    os.chmod(path, mode | 0o600)
    with open(path, "r+b") as file:
        file.write(b"changed")
    os.rename(path, path + b".renamed")
    return path + b".renamed"

before = digest("/workspace")
changed = [change(path, MODES[n % 4]) for n, path in enumerate(list(files("/workspace")))]
tell(before=before, after=digest("/workspace"), files=len(changed))
for n, path in enumerate(changed):
    os.chmod(path, MODES[n % 4])
for above, directories, names in os.walk("/workspace", topdown=False):
    for n, name in enumerate(sorted(directories)):
        os.chmod(os.path.join(above, name), (0o000, 0o500, 0o755)[n % 3])
"""
"""Writes into every seeded file, renames it, and takes rights away from it and its directories."""

LEAVE_MODES = f"""{TREE}{TELL}
os.makedirs("/workspace/shut/inner")
for name, mode in {{"none": 0o000, "own": 0o600, "write-only": 0o200, "run-only": 0o100, "setuid": 0o6755}}.items():
    for above in ("/workspace", "/workspace/shut", "/workspace/shut/inner"):
        with open(os.path.join(above, name), "w") as file:
            file.write(name)
        os.chmod(os.path.join(above, name), mode)
os.link("/workspace/own", "/workspace/hard")
os.symlink("shut/inner/none", "/workspace/link")
os.symlink("nowhere", "/workspace/dangling")
os.mkdir("/workspace/empty")
for name in ("shut/inner", "shut", "empty", "."):
    os.chmod(os.path.join("/workspace", name), 0o000)
"""

HOSTILE = {
    "absolute": ("extract_symlink_escape", "os.symlink('/etc/passwd', 'link')"),
    "upwards": ("extract_symlink_escape", "os.symlink('../../outside', 'link')"),
    "chained": ("extract_symlink_escape", "os.symlink('b', 'a'); os.symlink('../..', 'b')"),
    "looping": ("extract_symlink_escape", "os.symlink('b', 'a'); os.symlink('a', 'b')"),
    "through": ("extract_symlink_escape", "os.symlink('/tmp', 'above'); os.symlink('above/x', 'below')"),
    "fifo": ("extract_special", "os.mkfifo('fifo')"),
    "socket": ("extract_special", "socket.socket(socket.AF_UNIX).bind('socket')"),
    "bytes": ("extract_path_invalid", "open(b'\\xff', 'w')"),
    "case": ("extract_duplicate", "open('name', 'w'); open('NAME', 'w')"),
    "composed": ("extract_duplicate", "open('\\u00e9', 'w'); open('e\\u0301', 'w')"),
    "deep": ("extract_name_too_long", "down('d', 300)"),
    "long": ("extract_name_too_long", "down('n' * 250, 17)"),
    "sparse": ("extract_size_limit", "os.truncate(os.open('file', os.O_CREAT | os.O_RDWR), 1 << 40)"),
    "links": ("extract_size_limit", "[os.symlink('t' * 4000, str(n)) for n in range(2200)]"),
    "many": ("extract_entry_limit", "many(100_001)"),
}
"""What a worker can leave, by the directory it leaves it in: the code that refuses it, and how it is made."""

LEAVE_HOSTILE = f"""
import os, socket
def down(name, times):
    for _ in range(times):
        os.mkdir(name)
        os.chdir(name)

def many(count):
    for n in range(count):
        if not n % 50_000:
            first = str(n)
            open(first, "w").close()
        else:
            os.link(first, str(n))

os.mkdir("/workspace/harmless")
open("/workspace/harmless/file", "w").write("harmless")
for place, make in {{name: made for name, (_, made) in {HOSTILE!r}.items()}}.items():
    os.mkdir("/workspace/" + place)
    os.chdir("/workspace/" + place)
    exec(make)
"""
