"""Stock Debian kernels to test against, made ready for a guest and cached.

The newest kernel of a suite, Debian's backports or Debian's own, is looked up (never pinned), unpacked, joined by two
builds of the software iWARP driver `siw`, which Debian does not ship, and given a small initial RAM disk. All of it lands
under ${XDG_CACHE_HOME:-~/.cache}/ironside-vm; apt's own configuration is left alone, backports have a private list.
"""

import fcntl
import functools
import hashlib
import inspect
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ironside-vm"

# Command → Debian package that brings it. The guest runs on the host's root, so its tools are here as well.
TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "modprobe": "kmod",
    "cpio": "cpio",
    "xz": "xz-utils",
    "make": "make",
    "ip": "iproute2",
    "rdma": "iproute2",
    "nvme": "nvme-cli",
    "fio": "fio",
    "mkfs.ext4": "e2fsprogs",
    "qemu-img": "qemu-utils",
    "qemu-io": "qemu-utils",
}

# What a guest loads; modprobe's own dependency list adds the rest.
MODULES = (
    "9p 9pnet_virtio overlay virtio_pci virtio_console virtio_rng virtio_net configfs ib_uverbs rdma_ucm iw_cm nvme_rdma "
    "nvmet_rdma nvme virtio_blk nbd brd null_blk loop fuse dummy veth ublk_drv rdma_rxe sch_netem ext4 xfs crc32_generic crc32c_generic crc32c_intel"
).split()
# Those among them which kernels of Debian 12 itself have not got.
NOT_EVERYWHERE = ("ublk_drv",)

# The crc build differs in one constant: as shipped, siw never asks its peer for the MPA checksum.
SIW_BUILDS = {"siw": (), "siw-crc": (("const bool mpa_crc_required;", "const bool mpa_crc_required = true;"),)}


class CannotRun(Exception):
    """This machine cannot host the guest at all; the text says why."""


def say(text):
    print(f"  {text}", flush=True)


def run(*command, **options):
    """Runs a command quietly; a failure shows what it said."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} failed ({done.returncode}):\n{done.stdout[-3000:]}")
    return done.stdout


def prepare(suite="backports"):
    """Returns the directory with vmlinuz, initrd, modules/ and one siw.ko per build, making it where needed.

    `suite` is "backports" or "own", the kernel this release of Debian came with. Whoever else wants a kernel waits.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return prepare_once(suite)


@functools.cache
def prepare_once(suite):
    archive = Archive(suite)
    try:
        release, version = archive.newest_kernel()
    except RuntimeError as problem:
        cached = sorted(CACHE.glob(f"{suite}-*-{recipe()}/complete"), key=lambda done: done.stat().st_mtime)
        if not cached:
            raise CannotRun(f"no kernel can be had from the archive: {problem}") from problem
        say(f"the archive does not answer; using the kernel of an earlier run, {cached[-1].parent.name}")
        return cached[-1].parent
    place = CACHE / f"{suite}-{version}-{recipe()}"
    if not (place / "complete").exists():
        say(f"preparing Linux {release} ({version}); this takes about a minute, once")
        build(archive, release, version, place)
    build_initrd(release, place)
    return place


def recipe():
    """Changes with what is made of a kernel, so that a cache of another recipe is not taken for this one's."""
    made_by = [inspect.getsource(maker) for maker in (build, collect_modules, build_siw)]
    return hashlib.sha256(repr([MODULES, SIW_BUILDS, made_by]).encode()).hexdigest()[:8]


def check_machine():
    """Installs what guests need of this machine, or raises CannotRun."""
    if os.geteuid() != 0:
        raise CannotRun("needs root, to install packages and to serve the whole root to the guest")
    words = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    if words.get("ID") != "debian":
        raise CannotRun("needs Debian, whose kernel packages it uses")
    if os.uname().machine != "x86_64":
        raise CannotRun("needs an x86-64 machine")
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    missing = sorted({package for tool, package in TOOLS.items() if not shutil.which(tool)})
    # Drivers of libibverbs, without which a guest's adapters are not seen.
    if not Path("/etc/libibverbs.d/siw.driver").exists():
        missing.append("ibverbs-providers")
    # A peer of ours that misuses keys by an adapter; Debian's own Python runs it.
    if not Path("/usr/lib/python3/dist-packages/pyverbs").exists():
        missing.append("python3-pyverbs")
    if missing:
        install(missing)


def install(packages):
    say(f"installing {' '.join(packages)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300", *packages]
    try:
        run(*command, env=environment)
    except RuntimeError:
        run("apt-get", "update", "-q")
        try:
            run(*command, env=environment)
        except RuntimeError as problem:
            raise CannotRun(f"cannot install {' '.join(packages)}: {problem}") from problem


class Archive:
    """A suite of the archive this machine already uses; backports are read through a list of their own."""

    def __init__(self, suite):
        self.suite = suite
        self.place = CACHE / "apt"
        for part in ("lists/partial", "cache/archives/partial"):
            (self.place / part).mkdir(parents=True, exist_ok=True)
        settings = [f"Dir::Cache={self.place}/cache", "APT::Sandbox::User=root"]
        if suite == "backports":
            settings += [
                f"Dir::Etc::sourcelist={self.place}/sources.list",
                "Dir::Etc::sourceparts=/dev/null",
                f"Dir::State::lists={self.place}/lists",
                "Acquire::Languages=none",
            ]
        else:
            settings[0] = f"Dir::Cache::archives={self.place}/cache/archives"
        self.options = [word for setting in settings for word in ("-o", setting)]

    def newest_kernel(self):
        """(release, package version) of the newest kernel, such as 6.12.95+deb12-amd64 and 6.12.95-1~bpo12+1."""
        if self.suite == "backports":
            self.refresh_backports()
        elif not self.field("linux-source", "Version"):
            run("apt-get", "update", "-q")
        depends = self.field("linux-image-amd64", "Depends")
        match = re.search(r"linux-image-(\S+) \(= (\S+)\)", depends)
        if not match:
            raise RuntimeError(f"linux-image-amd64 depends on {depends!r}")
        return match.groups()

    def refresh_backports(self):
        stamp = self.place / "refreshed"
        if stamp.exists() and time.time() - stamp.stat().st_mtime < 86400:
            return
        targets = run("apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages")
        codename = re.search(r"VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text()).group(1)
        archives = [line.split()[0] for line in targets.splitlines() if line.split()[-1] == codename]
        if not archives:
            raise RuntimeError(f"apt knows no archive of {codename}")
        keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
        line = f"deb [signed-by={keyring}] {archives[0]} {codename}-backports main\n"
        (self.place / "sources.list").write_text(line)
        run("apt-get", *self.options, "update", "-q")
        stamp.touch()

    def field(self, package, name):
        shown = run("apt-cache", *self.options, "show", "--no-all-versions", package)
        return "".join(re.findall(rf"^{name}: (.*)$", shown, re.M)[:1])

    def unpack(self, packages, place):
        """Downloads packages (name=version) and unpacks them under `place`, without installing anything."""
        debs = place / "debs"
        debs.mkdir(parents=True)
        run("apt-get", *self.options, "download", "-q", *packages, cwd=debs)
        for deb in debs.iterdir():
            run("dpkg", "-x", str(deb), str(place))
        shutil.rmtree(debs)


def build(archive, release, version, place):
    """Everything that depends on the kernel alone, in a scratch directory which is renamed when whole."""
    scratch = place.with_name(f"{place.name}.{os.getpid()}.partial")
    for left in CACHE.glob("*.partial"):
        if not Path("/proc", left.name.split(".")[-2]).exists():
            shutil.rmtree(left)
    root = scratch / "unpacked"
    series = re.match(r"\d+\.\d+", release).group(0)
    say("downloading kernel, headers and source (about 270 MB)")
    needed = archive.field(f"linux-headers-{release}", "Depends")
    headers = re.findall(r"linux-(?:headers|kbuild)-[^\s,]+", needed)
    names = [f"linux-image-{release}", f"linux-headers-{release}", *headers, f"linux-source-{series}"]
    archive.unpack([f"{name}={version}" for name in names], root)
    compiler = re.search(r"\bgcc-\d+", needed)
    if compiler and not shutil.which(compiler.group(0)):
        install([compiler.group(0)])

    shutil.copy(root / "boot" / f"vmlinuz-{release}", scratch / "vmlinuz")
    build_siw(root, release, series, scratch)
    collect_modules(root, release, scratch)
    shutil.rmtree(root)
    (scratch / "complete").write_text(release + "\n")
    shutil.rmtree(place, ignore_errors=True)
    scratch.rename(place)


def collect_modules(root, release, place):
    """The few modules a guest loads, decompressed: decompression is what costs under emulation."""
    if not (root / "lib").exists():
        (root / "lib").symlink_to("usr/lib")
    run("depmod", "-b", str(root), release)
    needed_by_siw = run("modinfo", "-F", "depends", str(place / "siw.ko")).strip().split(",")
    there = {path.name.split(".")[0].replace("-", "_") for path in (root / "lib" / "modules" / release).rglob("*.ko*")}
    modules = [module for module in MODULES if module not in NOT_EVERYWHERE or module in there]
    wanted = run("modprobe", "-d", str(root), "-S", release, "-a", "--show-depends", *modules, *needed_by_siw)
    tree = place / "modules" / "lib" / "modules" / release
    tree.mkdir(parents=True)
    source = root / "lib" / "modules" / release
    for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
        shutil.copy(source / name, tree)
    for line in set(wanted.splitlines()):
        if line.startswith("insmod "):
            shutil.copy(line.split()[1], tree)
    run("sh", "-c", f"find {tree} -name '*.xz' -exec xz -d {{}} +")
    run("depmod", "-b", str(place / "modules"), release)


def build_siw(root, release, series, place):
    """Builds siw out of tree, once as it is and once asking for the checksum."""
    headers = root / "usr/src" / f"linux-headers-{release}"
    makefile = headers / "Makefile"
    makefile.write_text(makefile.read_text().replace("/usr/src/", f"{root}/usr/src/"))
    # Where a kernel's packages link their tools by an absolute path, the link is to lead into what was unpacked.
    for link in (root / "usr/src").glob("*/*"):
        if link.is_symlink() and os.readlink(link).startswith("/"):
            there = root / os.readlink(link).lstrip("/")
            link.unlink()
            link.symlink_to(there)
    archive = root / "usr/src" / f"linux-source-{series}.tar.xz"
    driver = f"linux-source-{series}/drivers/infiniband/sw/siw"
    say("unpacking the driver's source")
    run("tar", "-xJf", str(archive), "-C", str(root), driver)
    for name, changes in SIW_BUILDS.items():
        say(f"building {name}.ko")
        work = place / name
        shutil.copytree(root / driver, work)
        main = work / "siw_main.c"
        text = main.read_text()
        for old, new in changes:
            if old not in text:
                raise RuntimeError(f"siw_main.c no longer says {old!r}")
            text = text.replace(old, new)
        main.write_text(text)
        objects = " ".join(sorted(f"{source.stem}.o" for source in work.glob("*.c")))
        (work / "Makefile").write_text(f"obj-m := siw.o\nsiw-y := {objects}\n")
        # The packaged headers lack the type information of the kernel image, so the module goes without its own.
        run("make", "-j2", "-C", str(headers), f"M={work}", "CONFIG_DEBUG_INFO_BTF_MODULES=", "modules")
        run("strip", "--strip-debug", str(work / "siw.ko"))
        (work / "siw.ko").rename(place / f"{name}.ko")
        shutil.rmtree(work)


def build_initrd(release, place):
    """A RAM disk of busybox, the modules of 9p and overlay, and guest/init; rebuilt when guest/init is newer."""
    initrd = place / "initrd"
    init = HERE / "guest" / "init"
    if initrd.exists() and initrd.stat().st_mtime > init.stat().st_mtime:
        return
    root = place / "initrd.root"
    shutil.rmtree(root, ignore_errors=True)
    for name in ("bin", "modules", "proc", "sys", "dev", "lower", "upper", "new"):
        (root / name).mkdir(parents=True)
    shutil.copy(shutil.which("busybox"), root / "bin/busybox")
    shutil.copy(init, root / "init")
    (root / "init").chmod(0o755)
    first = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
    order = run("modprobe", "-d", str(place / "modules"), "-S", release, "-a", "--show-depends", *first)
    files = list(dict.fromkeys(line.split()[1] for line in order.splitlines() if line.startswith("insmod ")))
    for file in files:
        shutil.copy(file, root / "modules")
    (root / "modules/order").write_text("".join(f"{Path(file).name}\n" for file in files))
    run("sh", "-c", f"cd {root} && find . | cpio -o -H newc --quiet | gzip -1 > {initrd}")
    shutil.rmtree(root)
