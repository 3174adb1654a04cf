# SPDX-License-Identifier: GPL-2.0-only
"""Names of functions as profiles show them, converted back to the names in the source."""

from __future__ import annotations

import re

# What compilers append: clones, split and cold parts, and names made unique for link-time optimisation.
_CLONE = re.compile(
    r"\.(?:isra|constprop|part|cold|warm|llvm|lto_priv|localalias|lsda|clone|str\d*|unlikely|text"
    r"|__uniq)(?:\.\w+)*$"
)
_VERSION = re.compile(r"@+(?:plt|[A-Z][\w.]*)$")  # malloc@plt, cfree@GLIBC_2.2.5, clock_gettime@@GLIBC_2.17
_BPF = re.compile(r"^bpf_prog_[0-9a-f]{16}(?=_|$)")
# Names that SYSCALL_DEFINE makes for one system call (arch/x86/include/asm/syscall_wrapper.h).
_SYSCALL = re.compile(
    r"^(?:__(?:x64|ia32|se|do)_(?:compat_)?sys_|__do_compat_sys|__ia32_compat_sys_|compat_sys_)"
)
_KERNEL_FILE = re.compile(r"(?:\.ko(?:\.\w+)?|(?:^|/)vmlinu[xz][^/]*)$")
# Bracketed names that perf gives to objects other than the kernel or a module.
_NOT_KERNEL = ("[vdso", "[vsyscall", "[heap", "[stack", "[unknown", "[anon", "[uprobes")


def is_kernel(dso: str) -> bool:
    """Whether the object of a function belongs to the kernel: itself, a module, a BPF program.

    An empty object counts too: in mode tracepoints, functions are the kernel's.

    >>> [is_kernel(d) for d in ("[kernel.kallsyms]", "[nf_tables]", "[vdso]", "/usr/bin/nginx")]
    [True, True, False, False]
    """
    if dso.startswith("["):
        return not dso.startswith(_NOT_KERNEL)
    return not dso or dso.startswith("bpf_prog_") or _KERNEL_FILE.search(dso) is not None


def plain_name(symbol: str, kernel: bool) -> str:
    """``symbol`` without what compiler, linker, macros and BPF loader add to the source's name.

    System calls of every kind become ``sys_NAME``; BPF programs lose their tag.

    >>> plain_name("__x64_sys_epoll_wait", True), plain_name("tcp_ack.part.0.cold", True)
    ('sys_epoll_wait', 'tcp_ack')
    >>> plain_name("bpf_prog_61db7603630d9758_sock_recv_lengt", True), plain_name("malloc@plt", False)
    ('bpf_prog_sock_recv_lengt', 'malloc')
    """
    if kernel:
        # C names have no dot: the compiler adds everything after one.
        name = symbol.partition(".")[0].removeprefix("__pfx_") or symbol
        if name.startswith("bpf_prog_"):
            return _BPF.sub("bpf_prog", name)
        return _SYSCALL.sub("sys_", name) if "sys_" in name else name
    name = _VERSION.sub("", symbol) if "@" in symbol else symbol
    while "." in name:
        shorter = _CLONE.sub("", name)
        if shorter == name:
            break
        name = shorter
    return name or symbol
