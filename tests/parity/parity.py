#!/usr/bin/env python3
"""Runs a client of each language over recorded gradients and compares what they print.

parity.py FILE [--json FILE] NAME=COMMAND [NAME=COMMAND ...]; README.md says what a client does.
"""

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path


def run(name, command, file):
    result = subprocess.run([*shlex.split(command), file], text=True, stdout=subprocess.PIPE, check=False)
    words = result.stdout.split()
    if result.returncode != 0 or len(words) != 3:
        return {"language": name, "digest": "failed", "skipped": None, "final_scale": None}
    return {"language": name, "digest": words[0], "skipped": int(words[1]), "final_scale": float(words[2])}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--json", type=Path, help="add the rows to this file, as `languages`")
    parser.add_argument("clients", nargs="+", metavar="NAME=COMMAND")
    arguments = parser.parse_args()
    rows = [run(*client.split("=", 1), arguments.file) for client in arguments.clients]
    print(f"{'language':<10}{'CRC-32 of all results':<24}{'skipped':>7}{'final scale':>14}")
    for row in rows:
        print(f"{row['language']:<10}{row['digest']:<24}{row['skipped']!s:>7}{row['final_scale'] or 0:>14g}")
    if arguments.json:
        facts = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
        arguments.json.write_text(json.dumps(facts | {"languages": rows}, indent=2) + "\n")
    failed = sum(row["digest"] in ("failed", "") or row != rows[0] | {"language": row["language"]} for row in rows)
    if failed:
        print(f"broken: {failed} of {len(rows)} languages differ from {rows[0]['language']}, or failed")
    sys.exit(failed)


if __name__ == "__main__":
    main()
