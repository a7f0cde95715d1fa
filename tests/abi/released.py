# SPDX-License-Identifier: MIT
"""Keeps the promises of the releases: compares the manifest with that of each one under tests/abi/released/.

ci/generate runs this before it writes anything. With --release it adds the present version instead: its manifest, its
headers, its signatures, and the client that runs against every later library.
"""

import shutil
import sys
from pathlib import Path

from generate import signatures
from manifest import PATH, ROOT, ManifestError, load, version_of

CLIENT = Path("tests/abi/client.c")
HEADERS = PATH.with_suffix(".h"), PATH.with_name("gradscaler_cuda.h")
RELEASED = ROOT / CLIENT.with_name("released")


def same_type(old, new):
    return (old.c, old.base, old.passing) == (new.c, new.base, new.passing)


def check_since(where, old, new):
    if version_of(new.since) > version_of(old.since):
        raise ManifestError(f"{where}: since is {new.since}, but it was there in {old.since} already")
    if version_of(new.since) < version_of(old.since):
        raise ManifestError(f"{where}: since is {new.since}, but it came in {old.since}")


def check_new(where, new, version):
    """What a release did not have came after it."""
    if version_of(new.since) <= version:
        raise ManifestError(f"{where}: since is {new.since}, but that release did not have it")


def check_constants(old, new, version):
    for key in ("prefix", "kind", "type"):
        was, now = getattr(old, key), getattr(new, key)
        if was != now:
            raise ManifestError(f"{old.name}: {key} is {now}, but was released as {was}")
    values = {value.name: value for value in new.values}
    for value in old.values:
        kept = values.pop(value.name, None)
        if kept is None:
            raise ManifestError(f"{value.c}: is missing, but was released as {value.value}")
        if kept.value != value.value:
            raise ManifestError(f"{value.c}: is {kept.value}, but was released as {value.value}, which never moves")
        check_since(value.c, value, kept)
    for value in values.values():
        check_new(value.c, value, version)


def check_callable(old, new):
    if old.returns != new.returns:
        raise ManifestError(f"{old.name}: returns {new.returns}, but was released with {old.returns}")
    if [arg.name for arg in old.args] != [arg.name for arg in new.args]:
        given, had = (", ".join(arg.name for arg in item.args) for item in (new, old))
        raise ManifestError(f"{old.name}: has the arguments ({given}), but was released with ({had})")
    for was, now in zip(old.args, new.args, strict=True):
        if not same_type(was, now) or was.count != now.count:
            given, had = (" ".join(filter(None, (a.c, a.passing, a.count))) for a in (now, was))
            raise ManifestError(f"{was.where}: is {given}, but was released as {had}")
        if was.takes != now.takes:
            raise ManifestError(f"{was.where}: takes {now.takes}, but was released with {was.takes}")
        if was.null and not now.null:
            raise ManifestError(f"{was.where}: NULL is refused, but was released as: {was.null}")
        if now.required and not was.required:
            raise ManifestError(f"{was.where}: is required, but was released as NULL with {was.count} = 0")


def check_callback(old, new, version):
    check_callable(old, new)


def check_function(old, new, version):
    check_callable(old, new)
    if old.capture and not new.capture:
        raise ManifestError(f"{old.name}: capture is false, but was released as true")


def at(struct, offset):
    """The field that covers a byte."""
    return next((f for f in struct.fields if f.offset <= offset < f.offset + f.bytes), None)


def check_struct(old, new, version):
    if old.kind != new.kind:
        raise ManifestError(f"{old.name}: kind is {new.kind}, but was released as {old.kind}")
    if old.kind == "fixed" and old.size != new.size:
        raise ManifestError(f"{old.name}: has {new.size} bytes, but was released with {old.size}, which are fixed")
    if old.size > new.size:
        raise ManifestError(f"{old.name}: has {new.size} bytes, but was released with {old.size}")
    fields = {field.name: field for field in new.fields}
    for was in old.fields:
        now = fields.pop(was.name, None)
        if was.reserved:  # its bytes may have got names since; what is left of it may lie further on
            continue
        if now is None:
            raise ManifestError(f"{was.where}: is missing, but was released")
        if not same_type(was, now) or was.array != now.array:
            given, had = (f.c + (f"[{f.array}]" if f.array else "") for f in (now, was))
            raise ManifestError(f"{was.where}: is {given}, but was released as {had}")
        if was.offset != now.offset:
            raise ManifestError(f"{was.where}: is at byte {now.offset}, but was released at {was.offset}")
        if was.takes != now.takes:
            raise ManifestError(f"{was.where}: takes {now.takes}, but was released with {was.takes}")
        check_since(was.where, was, now)
    for now in fields.values():
        within = [at(old, byte) for byte in range(now.offset, min(now.offset + now.bytes, old.size))]
        if not all(was and was.reserved for was in within):
            raise ManifestError(f"{now.where}: lies where {old.name} was released with other fields")
        if not now.reserved:
            check_new(now.where, now, version)


def check_alias(old, new, version):
    if old.type != new.type:
        raise ManifestError(f"{old.name}: is {new.type}, but was released as {old.type}")


def check(old, new):
    """Raises ManifestError where a client of the old manifest would notice the new one."""
    items = {item.name: item for item in new.items if item.what != "section"}
    for was in old.items:
        if was.what == "section":
            continue
        now = items.pop(was.name, None)
        if now is None or now.what != was.what:
            raise ManifestError(f"{was.name}: is missing, but was released")
        check_since(was.name, was, now)
        if was.what != "opaque":
            globals()[f"check_{was.what}"](was, now, old.version[:2])
    for now in items.values():
        check_new(now.name, now, old.version[:2])


def main():
    manifest = load()
    for path in sorted(RELEASED.glob(f"*/{PATH.name}")):
        try:
            check(load(path), manifest)
        except ManifestError as error:
            sys.exit(f"{PATH}: {error} (release {path.parent.name})")
    if sys.argv[1:] != ["--release"]:
        return
    folder = RELEASED / "{}.{}".format(*manifest.version)
    if (folder / PATH.name).exists():
        sys.exit(f"{folder.relative_to(ROOT)} is there already: what was released stays as it is")
    folder.mkdir(parents=True, exist_ok=True)
    for path in (PATH, *HEADERS, CLIENT, CLIENT.with_name("saved.inc")):
        shutil.copyfile(ROOT / path, folder / path.name)
    (folder / "signatures.inc").write_text(signatures(manifest))
    print(f"wrote {folder.relative_to(ROOT)}")


if __name__ == "__main__":
    try:
        main()
    except ManifestError as error:
        sys.exit(str(error))
