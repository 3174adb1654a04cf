# SPDX-License-Identifier: GPL-2.0-only
"""Categories: which category a name has, the order in which rows are tried, and files with mistakes."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from nsight_report.attribution import categories, kernel_functions
from nsight_report.attribution.categories import Category, categorise, load
from nsight_report.errors import BadInput

KERNEL = {
    "Receive processing": "ip_rcv net_rx_action mlx5e_poll_rx_cq __netif_receive_skb_core napi_gro_receive"
    " ixgbe_poll ice_napi_poll virtnet_poll ip_local_deliver process_backlog eth_type_trans i40e_napi_poll",
    "Transmit processing": "dev_queue_xmit __dev_queue_xmit dev_hard_start_xmit ip_queue_xmit ip_finish_output2"
    " net_tx_action mlx5e_xmit ixgbe_xmit_frame start_xmit",
    "TCP": "tcp_v4_rcv tcp_sendmsg tcp_recvmsg tcp_ack tcp_write_xmit inet_csk_accept tcp_rcv_established"
    " tcp_retransmit_skb tcp_v6_rcv",
    "UDP": "udp_rcv udp_sendmsg __udp4_lib_rcv udpv6_recvmsg",
    "IP and routing": "ip_route_input_slow fib_table_lookup neigh_resolve_output icmp_rcv ip_forward",
    "Netfilter": "nf_hook_slow nft_do_chain nf_conntrack_in ipt_do_table",
    "Bridges and virtual devices": "br_handle_frame veth_xmit tun_net_xmit bond_start_xmit ovs_dp_process_packet",
    "Queueing disciplines": "fq_codel_dequeue htb_enqueue __qdisc_run sch_direct_xmit",
    "Sockets": "sock_def_readable sock_recvmsg inet_sendmsg __x64_sys_recvfrom sock_sendmsg",
    "Epoll and polling": "ep_poll ep_poll_callback __x64_sys_epoll_wait do_sys_poll",
    "Packet buffers": "__alloc_skb skb_release_data kfree_skb_reason page_pool_put_unrefed_netmem",
    "Unix sockets": "unix_stream_sendmsg",
    "Kernel TLS": "tls_sw_sendmsg",
    "Packet capture": "tpacket_rcv packet_rcv",
    "Scheduler": "__schedule pick_next_task_fair try_to_wake_up enqueue_task_fair finish_task_switch",
    "Load balancing": "sched_balance_rq sched_balance_newidle migration_cpu_stop",
    "Kernel locks": "native_queued_spin_lock_slowpath _raw_spin_lock __mutex_lock rwsem_down_read_slowpath",
    "Lock wait": "futex_wait_queue futex_wake do_futex __x64_sys_futex",
    "Timers": "hrtimer_interrupt __run_timers call_timer_fn hrtimer_start_range_ns",
    "Timer interrupt": "tick_nohz_handler asm_sysvec_apic_timer_interrupt",
    "Clock reading": "ktime_get read_tsc __vdso_clock_gettime",
    "RCU": "rcu_core rcu_do_batch __call_rcu_common",
    "Workqueues": "process_one_work worker_thread queue_work_on",
    "Signals": "do_send_sig_info get_signal",
    "Process creation and exit": "copy_process do_exit kernel_clone begin_new_exec",
    "BPF": "htab_map_update_elem bpf_ringbuf_reserve bpf_trampoline_link_prog",
    "NSight's own cost": "perf_output_begin bpf_probe_read_kernel trace_call_bpf ring_buffer_lock_reserve perf_trace_run_bpf_submit"
    " bpf_prog_61db7603630d9758_sock_recv_lengt trace_event_raw_event_sched_switch",
    "Cgroups": "mem_cgroup_charge_skmem psi_task_switch throttle_cfs_rq",
    "Interrupt handling": "handle_edge_irq irq_enter_rcu handle_softirqs asm_common_interrupt",
    "Inter-processor interrupts": "smp_call_function_many_cond asm_sysvec_call_function flush_smp_call_function_queue",
    "System call entry": "do_syscall_64 entry_SYSCALL_64 syscall_exit_to_user_mode",
    "Page faults": "do_user_addr_fault handle_mm_fault asm_exc_page_fault do_anonymous_page",
    "Memory reclaim": "shrink_lruvec try_to_free_pages kswapd",
    "Memory compaction": "compact_zone isolate_migratepages_block",
    "Memory allocation": "kmem_cache_alloc_noprof kfree __alloc_pages_noprof get_page_from_freelist",
    "Memory maps": "do_mmap mprotect_fixup __x64_sys_munmap unmap_region",
    "TLB flushes": "flush_tlb_mm_range flush_tlb_func tlb_finish_mmu",
    "Huge pages": "collapse_huge_page do_huge_pmd_anonymous_page",
    "NUMA balancing and page migration": "migrate_pages task_numa_work",
    "Memory copies": "rep_movs_alternative _copy_to_iter _copy_from_iter clear_page_erms",
    "Page cache": "filemap_get_pages balance_dirty_pages",
    "File systems": "vfs_read ext4_file_write_iter xfs_file_read_iter btrfs_sync_file",
    "Pipes and event descriptors": "pipe_read eventfd_signal_mask",
    "Proc and sysfs": "proc_reg_read seq_read_iter kernfs_fop_read_iter",
    "Disk I/O": "submit_bio blk_mq_submit_bio nvme_irq",
    "io_uring": "io_submit_sqes io_issue_sqe",
    "Cryptography": "crypto_aead_encrypt",
    "Security and audit": "security_socket_recvmsg __audit_syscall_exit __seccomp_filter apparmor_socket_sendmsg",
    "Virtual machines on this host": "kvm_vcpu_block vmx_vcpu_run",
    "Hypervisor calls": "kvm_steal_clock",
    "CPU idle": "cpuidle_enter_state intel_idle do_idle default_idle",
    "CPU frequency and power": "cpufreq_driver_fast_switch intel_pstate_update_util",
    "CPU mitigations": "srso_return_thunk __x86_indirect_thunk_rax",
    "Console and terminals": "tty_write n_tty_read",
    "IOMMU and DMA mapping": "dma_map_page_attrs swiotlb_tbl_map_single",
    "Virtio rings": "virtqueue_get_buf_ctx",
    "XDP": "xdp_do_redirect",
}  # fmt: skip

LIBC = "/usr/lib/x86_64-linux-gnu/libc.so.6"
USER = [
    ("malloc", LIBC, "Memory allocator"),
    ("cfree@GLIBC_2.2.5", LIBC, "Memory allocator"),
    ("__memmove_avx_unaligned_erms", LIBC, "Memory copies"),
    ("pthread_mutex_lock@@GLIBC_2.2.5", LIBC, "Lock wait"),
    ("__vfprintf_internal", LIBC, "C library"),
    ("clock_gettime@@GLIBC_2.17", LIBC, "Clock reading"),
    ("epoll_wait", LIBC, "Epoll and polling"),
    ("__vdso_clock_gettime", "/vdso.so", "Clock reading"),
    ("__vdso_clock_gettime", "[vdso]", "Clock reading"),
    ("_dl_runtime_resolve_xsavec", "/lib64/ld-linux-x86-64.so.2", "Dynamic linking"),
    ("event_base_loop", "/usr/lib/x86_64-linux-gnu/libevent-2.1.so.7.0.1", "Event loop library"),
    ("EVP_EncryptUpdate", "/usr/lib/x86_64-linux-gnu/libcrypto.so.3", "TLS and cryptography"),
    ("SSL_read", "/usr/lib/x86_64-linux-gnu/libssl.so.3", "TLS and cryptography"),
    ("deflate", "/usr/lib/x86_64-linux-gnu/libz.so.1", "Compression"),
    ("je_arena_malloc_hard", "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", "Memory allocator"),
    ("std::ostream::sentry::sentry", "/usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30", "C++ library"),
    ("operator new(unsigned long)", "/opt/server", "Memory allocator"),
    ("runtime.gcBgMarkWorker", "/opt/server", "Garbage collection"),
    ("runtime.(*mspan).sweep", "/opt/server", "Garbage collection"),
    ("runtime.mallocgc", "/opt/server", "Memory allocator"),
    ("gc_collect_main", "/usr/bin/python3.11", "Garbage collection"),
    ("_PyEval_EvalFrameDefault", "/usr/bin/python3.11", "Language runtime"),
    ("G1ParScanThreadState::trim_queue", "/usr/lib/jvm/lib/server/libjvm.so", "Garbage collection"),
    ("rte_eth_rx_burst", "/opt/server", "User-space network stack"),
    ("mtcp_epoll_wait", "/opt/server", "User-space network stack"),
    ("ff_run", "/opt/server", "User-space network stack"),
    ("process_command", "/usr/bin/memcached", "Application processing"),
    ("bpf_map_lookup_elem", "/usr/bin/bpftrace", "NSight's own cost"),
]


def csv_rows(path: Path) -> list[list[str]]:
    return list(csv.reader(line for line in path.read_text().splitlines() if not line.startswith("#")))


@pytest.fixture(scope="module")
def built_in() -> categories.Categories:
    return load()


@pytest.mark.parametrize(
    ("name", "category"), [(n, c) for c, names in KERNEL.items() for n in names.split()], ids=lambda v: str(v)
)
def test_kernel_functions_have_the_category_a_user_would_act_on(built_in, name, category):
    dso = "/vdso.so" if name.startswith("__vdso") else "[kernel.kallsyms]"
    found, advice = categorise(built_in, "function", name, dso)
    assert found == category
    assert len(advice) > 20


@pytest.mark.parametrize(
    ("name", "dso", "category"), USER, ids=[f"{n} {d.rpartition('/')[2]}" for n, d, _ in USER]
)
def test_user_functions_have_the_category_of_their_library(built_in, name, dso, category):
    assert categorise(built_in, "function", name, dso)[0] == category


@pytest.mark.parametrize(
    "name",
    [
        "tcp_ack.isra.0",
        "tcp_ack.constprop.0.isra.0",
        "tcp_ack.part.0.cold",
        "tcp_ack.llvm.1234",
        "__pfx_tcp_ack",
    ],
)
def test_what_compilers_add_does_not_change_the_category(built_in, name):
    assert categorise(built_in, "function", name, "[kernel.kallsyms]")[0] == "TCP"


@pytest.mark.parametrize(
    "form", ["__x64_sys_%s", "__ia32_sys_%s", "__se_sys_%s", "__do_sys_%s", "__x64_compat_sys_%s", "sys_%s"]
)
def test_system_calls_are_found_under_every_name(built_in, form):
    found = [
        categorise(built_in, "function", form % call, "[kernel.kallsyms]")[0]
        for call in ("recvfrom", "futex", "epoll_wait", "munmap")
    ]
    assert found == ["Sockets", "Lock wait", "Epoll and polling", "Memory maps"]


def test_a_user_function_is_not_taken_for_the_kernel_s_of_that_name(built_in):
    assert categorise(built_in, "function", "tcp_ack", "/opt/server")[0] == "Application processing"
    assert categorise(built_in, "function", "tcp_ack", "[tcp_module]")[0] == "TCP"


def test_contexts_keep_their_categories(built_in):
    for kind, subject, category in (
        ("thread", "nginx", "nginx"),
        ("thread", "ksoftirqd", "OS threads"),
        ("softirq", "NET_RX", "Receive processing"),
        ("hardirq", "call_function_single", "Inter-processor interrupts"),
        ("hardirq", "eth0-rx-3", "Device interrupts"),
        ("idle", "before arrival", "NIC delay"),
        ("wait", "sleeping in futex", "Lock wait"),
        ("wait", "sleeping in asm_exc_page_fault", "Blocked on I/O or memory"),
        ("wait", "blocked in user code", "Blocked on I/O or memory"),
        ("wait", "sleeping in an unknown call", "Application waits"),
        ("stall", "default_idle (HLT)", "CPU idle"),
        ("nonsense", "nothing", "Other"),
    ):
        found, advice = categorise(built_in, kind, subject)
        assert found == category
        assert advice


def test_user_s_rows_come_first_and_the_built_in_ones_stay(tmp_path):
    mine = tmp_path / "mine.csv"
    mine.write_text(
        "# my own\nkind,pattern,category,advice\n"
        'function,tcp_v4_*,"Front, door",ours\n'
        "thread,nginx,Web,\n"
        "function,lookup,Cache,,/opt/stack/*\n"
        "function,vfs_*,Files\n"
    )
    found = load(mine)
    assert categorise(found, "function", "tcp_v4_rcv", "[kernel.kallsyms]") == ("Front, door", "ours")
    assert categorise(found, "function", "tcp_ack", "[kernel.kallsyms]")[0] == "TCP"
    assert categorise(found, "thread", "nginx") == ("Web", "")
    assert categorise(found, "thread", "redis")[0] == "redis"
    assert categorise(found, "function", "lookup", "/opt/stack/server")[0] == "Cache"
    assert categorise(found, "function", "lookup", "/usr/bin/other")[0] == "Application processing"
    assert categorise(found, "function", "vfs_read.part.0", "[kernel.kallsyms]")[0] == "Files"


def test_first_row_in_the_file_wins_whatever_its_form(tmp_path):
    names = ("a_exact", "a_prefix_1", "x_wild_y")
    rows = [
        "function,a_*,Prefix",
        "function,a_exact,Exact",
        "function,*wild*,Wild",
        "function,x_wild_y,Later",
    ]
    for order, expected in (
        (rows, ["Prefix", "Prefix", "Wild"]),
        (rows[::-1], ["Exact", "Prefix", "Later"]),
        (["*,*,All", *rows], ["All", "All", "All"]),
    ):
        path = tmp_path / "c.csv"
        path.write_text("\n".join(order) + "\n")
        found = load(path)
        assert [categorise(found, "function", n, "[kernel.kallsyms]")[0] for n in names] == expected


@pytest.mark.parametrize(
    "line",
    [
        "function,x",
        "function,x,",
        ",x,Mine",
        "function,,Mine",
        "a,b,c,d,e,f",
        'thread,x,Mine,"open',
        'thread,x,"a"b,c',
    ],
)
def test_malformed_lines_are_named_with_their_number_and_a_fix(tmp_path, line):
    path = tmp_path / "bad.csv"
    path.write_text(f"# first\nthread,ok,Fine\n{line}\n")
    with pytest.raises(BadInput, match=r"bad\.csv:3: ") as caught:
        load(path)
    assert caught.value.hint


def test_every_category_has_advice_and_all_advice_is_of_a_category():
    used = {r.category for r in categories.read(categories.BUILT_IN)} - {"{name}"}
    used |= {r[0] for r in csv_rows(kernel_functions.BUILT_IN)}
    advice = categories.read_advice()
    # If the category is the subject's name, the kind of context selects the advice.
    named = {f"{{{r.kind}}}" for r in categories.read(categories.BUILT_IN) if r.category == "{name}"}
    assert used | named == set(advice)
    assert list(advice) == sorted(advice)
    assert [c for c, a in advice.items() if not a.change.endswith(".") or len(a.change) < 30] == []
    # A command to copy, and a check that is not the same text.
    assert [
        c
        for c, a in advice.items()
        if a.command.endswith(".") or a.check.endswith(".") or a.check == a.command
    ] == []


def test_causes_come_with_the_command_of_their_category_or_kind():
    known = load()
    assert known.steps("softirq", "Receive processing")[0].startswith("ethtool -L")
    assert known.steps("thread", "nginx")[0].startswith("taskset -pc OTHER_CPUS")
    assert known.steps("sibling", "nginx")[0] == "taskset -pc CPU TID"
    assert known.steps("function", "a category of my own") == ("", "")


def test_no_built_in_row_is_hidden_by_an_earlier_one():
    rows = categories.read(categories.BUILT_IN)
    seen = [(r.kind, r.pattern, r.dso) for r in rows]
    assert len(set(seen)) == len(seen)
    for number, row in enumerate(rows):
        before = [r for r in rows[:number] if r.pattern == "*" and r.kind in ("*", row.kind)]
        assert not [r for r in before if r.dso in ("", row.dso)], row


def test_the_committed_table_is_what_its_header_says():
    text = kernel_functions.BUILT_IN.read_text()
    header = [line for line in text.splitlines() if line.startswith("#")]
    assert text.startswith("\n".join(header))
    said = next(line for line in header if "Made from Linux 6.12" in line)
    rows = {p: r[0] for r in csv_rows(kernel_functions.BUILT_IN) for p in r[1].split()}
    patterns = [p for r in csv_rows(kernel_functions.BUILT_IN) for p in r[1].split()]
    assert len(patterns) == len(rows)  # no pattern twice
    assert f" in {len(rows)} patterns" in said
    assert int(said.split(":")[1].split()[0]) > 100_000
    # Sorted, and each pattern on the line where the writer puts it.
    assert text.splitlines()[len(header) :] == list(kernel_functions.lines(rows))
    assert len(text) < 400_000
    assert not [p for p in patterns if p.endswith("*") and len(p) < 4]


def test_rows_hold_their_object_when_names_collide():
    row = Category("function", "lookup", "Here", "", "libfoo.so*")
    found = categories.Categories([row], [], kernel_functions.KernelFunctions({}), {})
    assert categorise(found, "function", "lookup", "/usr/lib/libfoo.so.1")[0] == "Here"
    assert categorise(found, "function", "lookup", "/usr/lib/libbar.so.1")[0] == "Other"
