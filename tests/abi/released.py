# SPDX-License-Identifier: MIT
"""Keeps the promises of the releases: compares the manifest with the digest of each, tests/abi/released/*/abi.json.

ci/generate runs this before it writes anything. --digest prints the digest of the present manifest; --release adds the
present version: its digest, its headers, and a client that runs against every later library. A release begins with the
client of the one before it.
"""

import json
import shutil
import sys
from types import SimpleNamespace

from manifest import PATH, ROOT, ManifestError, load, version_of

HEADERS = PATH.with_suffix(".h"), PATH.with_name("gradscaler_cuda.h")
RELEASED = ROOT / "tests/abi/released"
# The promises of a release about an item, a constant, a field or an argument.
PROMISED = """
    what name since header prefix kind type base c value values size fields offset bytes array reserved passing takes
    returns capture args null count required const
"""


class Released(SimpleNamespace):
    """A digest or a part of it; attributes that it leaves out are None."""

    def __getattr__(self, name):
        return None


def promises(part):
    if isinstance(part, list):
        return [promises(each) for each in part]
    if not isinstance(part, SimpleNamespace):
        return part
    found = {key: promises(getattr(part, key, None)) for key in PROMISED.split()}
    return {key: value for key, value in found.items() if value is not None and value is not False}


def digest(manifest):
    """Returns JSON with an item in each line."""
    items = [json.dumps(promises(item)) for item in manifest.items if item.what != "section"]
    return f'{{"cuda_version": {manifest.library.cuda_version}, "items": [\n' + ",\n".join(items) + "\n]}\n"


def read(path):
    return json.loads(path.read_text(), object_hook=lambda table: Released(**table))


def check_same(where, new, old, verb="is"):
    if new != old:
        raise ManifestError(f"{where}: {verb} {new}, but was released as {old}")


def type_of(value, length):
    """Returns the type of an argument or a field; a named type is compared where it is defined."""
    return " ".join(str(word) for word in (value.c, value.passing, length) if word)


def check_since(where, old, new):
    if version_of(new.since) > version_of(old.since):
        raise ManifestError(f"{where}: since is {new.since}, but it was there in {old.since} already")
    if version_of(new.since) < version_of(old.since):
        raise ManifestError(f"{where}: since is {new.since}, but it came in {old.since}")


def check_new(where, new, version):
    """Checks that what a release did not have came after it."""
    if version_of(new.since) <= version:
        raise ManifestError(f"{where}: since is {new.since}, but that release did not have it")


def check_constants(old, new, version):
    for key in ("prefix", "kind", "type"):
        check_same(old.name, getattr(new, key), getattr(old, key), f"{key} is")
    values = {value.name: value for value in new.values}
    for value in old.values:
        kept = values.pop(value.name, None)
        if kept is None:
            raise ManifestError(f"{value.c}: is missing, but was released as {value.value}")
        check_same(value.c, kept.value, value.value)
        check_since(value.c, value, kept)
    for value in values.values():
        check_new(value.c, value, version)


def check_callable(old, new):
    check_same(old.name, new.returns, old.returns, "returns")
    arguments = (", ".join(arg.name for arg in item.args) for item in (new, old))
    check_same(old.name, *arguments, "has the arguments")
    for was, now in zip(old.args, new.args, strict=True):
        check_same(now.where, type_of(now, now.count), type_of(was, was.count))
        check_same(now.where, now.takes, was.takes, "takes")
        if was.null and not now.null:
            raise ManifestError(f"{now.where}: NULL is refused, but was released as: {was.null}")
        if now.required and not was.required:
            raise ManifestError(f"{now.where}: is required, but was released as NULL with {was.count} = 0")


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
    check_same(old.name, new.kind, old.kind, "kind is")
    if old.kind == "fixed" or old.size > new.size:
        check_same(old.name, f"{new.size} bytes", f"{old.size} bytes", "has")
    fields = {field.name: field for field in new.fields}
    for was in old.fields:
        now = fields.pop(was.name, None)
        if was.reserved:  # its bytes may have got names since; what is left of it may lie further on
            continue
        if now is None:
            raise ManifestError(f"{old.name}.{was.name}: is missing, but was released")
        check_same(now.where, type_of(now, now.array), type_of(was, was.array))
        check_same(now.where, f"byte {now.offset}", f"byte {was.offset}", "is at")
        check_same(now.where, now.takes, was.takes, "takes")
        check_since(now.where, was, now)
    for now in fields.values():
        within = [at(old, byte) for byte in range(now.offset, min(now.offset + now.bytes, old.size))]
        if not all(was and was.reserved for was in within):
            raise ManifestError(f"{now.where}: lies where {old.name} was released with other fields")
        if not now.reserved:
            check_new(now.where, now, version)


def check_alias(old, new, version):
    check_same(old.name, new.type, old.type)


def check(old, new, version):
    """Raises ManifestError where a client of the release with this version would notice the new manifest."""
    items = {item.name: item for item in new.items if item.what != "section"}
    cuda_changed = new.library.cuda_version != old.cuda_version
    if new.library.cuda_version < old.cuda_version:
        check_same("library", new.library.cuda_version, old.cuda_version, "cuda_version is")
    for was in old.items:
        now = items.pop(was.name, None)
        if was.header == "cuda" and cuda_changed and (now is None or version_of(now.since) > version):
            continue  # provisional; on ELF, programs of the old header do not find the function
        if now is None or now.what != was.what:
            raise ManifestError(f"{was.name}: is missing, but was released")
        check_since(was.name, was, now)
        if was.what != "opaque":
            globals()[f"check_{was.what}"](was, now, version)
    for now in items.values():
        check_new(now.name, now, version)


def main():
    manifest = load()
    if sys.argv[1:] == ["--digest"]:
        print(digest(manifest), end="")
        return
    for path in sorted(RELEASED.glob("*/abi.json")):
        try:
            check(read(path), manifest, version_of(path.parent.name))
        except ManifestError as error:
            sys.exit(f"{PATH}: {error} (release {path.parent.name})")
    if sys.argv[1:] != ["--release"]:
        return
    folder = RELEASED / "{}.{}".format(*manifest.version)
    if (folder / "abi.json").exists():
        sys.exit(f"{folder.relative_to(ROOT)} is there already: what was released stays as it is")
    newest = max(RELEASED.iterdir(), key=lambda path: version_of(path.name))
    if newest != folder:
        shutil.copytree(newest, folder, ignore=shutil.ignore_patterns("abi.json"))
    for path in HEADERS:
        shutil.copyfile(ROOT / path, folder / path.name)
    (folder / "abi.json").write_text(digest(manifest))
    print(f"wrote {folder.relative_to(ROOT)}")


if __name__ == "__main__":
    try:
        main()
    except ManifestError as error:
        sys.exit(str(error))
