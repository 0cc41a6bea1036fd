#!/usr/bin/env python3
"""Whether what callgrind has seen run took a lock, or changed memory atomically: tests/instructions/locks.py PROFILE…

A profile names the address of each instruction that ran (--dump-instr=yes); which of them have a lock prefix, or are an
exchange with memory, which has it unsaid, is read from the program itself.
"""

import re
import subprocess
import sys
from pathlib import Path

ATOMIC = re.compile(r"^\s*([0-9a-f]+):\s+(lock .*|xchg .*\(.*)$")
INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s")


def main():
    failed = False
    for profile in map(Path, sys.argv[1:]):
        program, ran = addresses(profile)
        known, atomic = instructions(program)
        strange = ran - known
        assert atomic, f"{program} has no atomic instruction at all, which is not to be believed"
        assert ran and not strange, f"{profile}: {len(strange)} of {len(ran)} addresses are not of {program}"
        for address in sorted(ran & atomic.keys()):
            failed = True
            print(f"{profile.name}: {address:#x}: {atomic[address]}")
    return 1 if failed else 0


def addresses(profile):
    """The program, and the addresses in it of what ran."""
    here, program, position, ran, is_call = None, None, 0, set(), False
    for line in profile.read_text().splitlines():
        if line.startswith("ob="):
            here = line[3:]
        elif told := re.match(r"cmd:\s+(\S+)", line):
            program = told[1]
        elif line.startswith("calls="):
            is_call = True
        elif place := re.match(r"(0x[0-9a-f]+|[+-]\d+|\*)\s", line):
            # Positions are told from the one before; the line behind a call tells what the call cost.
            position = int(place[1], 16) if place[1].startswith("0x") else position + int(place[1].replace("*", "0"))
            if here == program and not is_call:
                ran.add(position)
            is_call = False
    return program, ran


def instructions(program):
    """All addresses in a program, and the atomic instructions by theirs."""
    listing = subprocess.run(["objdump", "-d", "--no-show-raw-insn", program], check=True, capture_output=True, text=True)
    known, atomic = set(), {}
    for line in listing.stdout.splitlines():
        if found := INSTRUCTION.match(line):
            known.add(int(found[1], 16))
            if changing := ATOMIC.match(line):
                atomic[int(changing[1], 16)] = changing[2]
    return known, atomic


if __name__ == "__main__":
    sys.exit(main())
