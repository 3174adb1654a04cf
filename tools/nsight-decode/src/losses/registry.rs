// SPDX-License-Identifier: GPL-2.0-only
//! Every loss that is counted: its key, its severity, and what it means.
//!
//! `losses.csv`, the registry of nsight-report, has the same rows with `decode_` before their keys; a test compares them.

use crate::numbered::named;

named! {
    pub enum Severity {
        Error "error",
        Warning "warning",
        Info "info",
    }
}

/// Words in braces stand for the arguments of `Ledger::add_object`.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    /// Stable: used in calls.json and, with `decode_` before it, in tables and JSON of nsight-report.
    pub key: &'static str,
    pub severity: Severity,
    pub cause: &'static str,
    pub detail: &'static str,
    /// Empty: there is no remedy.
    pub remedy: &'static str,
}

macro_rules! registry {
    ($($loss:ident: $key:literal $severity:ident $cause:literal $detail:literal $remedy:literal,)+) => {
        /// In the order in which they are reported.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Loss {
            $($loss,)+
        }

        impl Loss {
            pub fn words(self) -> Words {
                let (key, severity, cause, detail, remedy) = match self {
                    $(Self::$loss => ($key, Severity::$severity, $cause, $detail, $remedy),)+
                };
                Words { key, severity, cause, detail, remedy }
            }
        }
    };
}

registry! {
    // Decode errors, by perf's code
    PacketsDamaged: "packets_damaged" Error "packets are damaged"
        "nothing is known from there to the next address in the packets"
        "a hardware erratum, or the file is damaged",
    CodeMissing: "code_missing" Error "code is missing"
        "nothing is known from there to the next address in the packets"
        "record with --kcore; give --symfs the recorded machine's programs; code generated at run time cannot be decoded",
    CodeContradicted: "code_contradicted" Error "trace and code contradict each other"
        "nothing is known from there to the next address in the packets"
        "the programs or the kernel are not the recorded ones: --symfs, --kcore",
    TraceMissing: "trace_missing" Error "trace data are missing between two pieces"
        "nothing is known from there to the next address in the packets"
        "perf record -m ,64M",
    ReturnUnknown: "return_unknown" Error "return to a call that was lost"
        "after a loss, the targets of compressed returns are unknown; nothing is known from there to the next address in the packets"
        "record without compressed returns: intel_pt/noretcomp=1/; and see the other losses",
    DecoderStopped: "decoder_stopped" Error "libipt could not go on"
        "nothing is known from there to the next address in the packets"
        "",
    EndlessLoop: "endless_loop" Error "endless loop in the code"
        "nothing is known from there to the next address in the packets"
        "the programs or the kernel are not the recorded ones",
    DecodingFailed: "failed" Error "trace could not be decoded"
        "nothing is known from there to the next address in the packets"
        "record with --kcore, and give --symfs the recorded machine's programs",

    // Other events of the stream of edges
    Overflow: "overflow" Error "processor lost trace packets"
        "its internal buffer overflowed; a gap"
        "trace fewer cores, use a filter, or a longer cyc_thresh",
    BufferFull: "buffer_full" Error "trace buffer was full"
        "perf did not empty it in time; a gap"
        "give perf a larger AUX buffer: perf record -m ,64M",
    RecordsLost: "records_lost" Error "perf lost records"
        "context switches and mappings may be among them"
        "give perf a larger buffer: perf record -m 4M",
    TracePartial: "trace_partial" Warning "trace is partial"
        "it was overwritten, or another user of Intel PT ran"
        "record without --snapshot, and without other users of Intel PT",
    GuestCode: "guest_code" Info "code of a virtual machine"
        "it is not decoded; a gap"
        "record in the guest, or exclude it: intel_pt//H",
    OutsideWindows: "outside_windows" Info "interval outside of the time windows"
        "it was not decoded, as requested"
        "",

    // Of the table of calls, and of an edge file that it is made from
    CallsCut: "calls_cut" Info "open calls cut to save memory"
        "a core ran one thread for very long, or calls were nested very deeply; ends marked inferred"
        "",
    CallsForgotten: "calls_forgotten" Warning "open calls nested too deeply to be followed"
        "if calls nest deeper than 16,384, or than 4,096 at a context switch, the outer ones are given up: where they return to, another row begins, its begin marked missing"
        "",
    EdgesCut: "edges_cut" Warning "edge file is cut"
        "its end is missing; the program that wrote it was killed"
        "write it again",
    EdgesUnknown: "edges_unknown" Warning "blocks or events of an edge file unknown"
        "skipped: written by a newer program"
        "use a newer nsight-decode",

    // Of the recording and of the code that ran
    KernelMissing: "kernel_missing" Error "kernel image missing"
        "no kernel code: work in the kernel is not decoded"
        "record with --kcore, or give --kcore /proc on the same boot",
    CpuUnknown: "cpu_unknown" Warning "processor unknown"
        "errata of its Intel PT are not worked around: branches may be lost, or contradict the code"
        "nsight-decode --cpu FAMILY/MODEL/STEPPING, from /proc/cpuinfo of the recorded machine",
    TimesAreTicks: "times_are_ticks" Warning "times are TSC ticks, not ns"
        "the recording does not relate the TSC to perf's clock: its records of context switches and mappings are not used"
        "the kernel's clocksource must be the TSC (it may have been marked unstable); run perf record without -k",
    TimesAbsent: "times_absent" Warning "recorded without time"
        "intel_pt/tsc=0/: all times are 0, and the order is that of the packets in each buffer"
        "keep tsc=1 (the default)",
    KernelChanges: "kernel_changes" Error "too many changes of kernel code"
        "these later changes are not followed"
        "",
    ObjectMissing: "object_missing" Warning "code missing: {object}"
        "{why}"
        "give --symfs the recorded machine's files; code generated at run time is in no file",
    ObjectsMissing: "objects_missing" Warning "code missing: others"
        "in objects that were needed less often"
        "",
    FileCut: "file_cut" Warning "perf.data is cut"
        "perf was killed, or the file was not copied completely; decoded as far as possible, without header features (code of BPF programs)"
        "end perf with SIGINT",
    BytesUnread: "bytes_unread" Error "bytes of records unread"
        "nothing can be read after a damaged record"
        "copy the file again",
    UnknownRecords: "unknown_records" Warning "records of unknown types"
        "skipped: written by a newer perf or kernel"
        "use a newer nsight-decode",
    BytesBeforePsb: "bytes_before_psb" Info "PT bytes before the first PSB"
        "decoding starts at a PSB packet; data before the first one is lost"
        "",
    NoPsb: "no_psb" Error "trace buffers without a PSB packet"
        "decoding could not begin anywhere: nothing is known about these cores or threads"
        "record longer, with a smaller psb_period or a larger buffer: perf record -m ,64M",
    SlicesContradict: "slices_contradict" Error "slices that contradict each other"
        "two decodings of the same data differ: the second one counts"
        "please report it with the file",
    TimesLessExact: "times_less_exact" Info "intervals with less exact times"
        "packets and branches were not in the expected order: up to the next begin, times are libipt's, and may be late"
        "please report it with the file",
    TimesDamaged: "times_damaged" Warning "TSC packets contradict those before or after them"
        "not used: time continues from the one before, by cycles if they were counted"
        "a hardware erratum, or the file is damaged",
    GuestRecords: "guest_records" Info "guest records"
        "records of perf kvm"
        "",
}
