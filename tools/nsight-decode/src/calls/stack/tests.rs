// SPDX-License-Identifier: GPL-2.0-only
//! Short executions, and the calls that they must give.

use std::sync::Arc;

use super::*;
use crate::edges::{Code, Event};
use crate::insn::Stall;

mod deep;
mod jumps;
mod losses;

const K: u64 = 0xffff_ffff_8100_0000;

/// A core, and a clock that advances by 10 ns per edge.
struct Machine {
    core: Core,
    texts: Texts,
    saved: Saved,
    time: u64,
    tid: i32,
}

const NAMES: [&str; 15] = [
    "",
    "main",
    "read",
    "entry_SYSCALL_64",
    "vfs_read",
    "asm_exc_page_fault",
    "asm_sysvec_timer",
    "__x86_indirect_thunk_rax",
    "handler",
    "restorer",
    "_start",
    "__x86_return_thunk",
    "begin_new_exec",
    "do_idle",
    "vfs_read.cold",
];

fn id(name: &str) -> u32 {
    NAMES.iter().position(|n| *n == name).unwrap() as u32
}

impl Machine {
    fn new() -> Self {
        let mut texts = Texts::default();
        let symbols: Vec<(Arc<str>, Arc<str>)> = NAMES.iter().map(|n| ((*n).into(), "dso".into())).collect();
        texts.symbols(&symbols);
        Self { core: Core::new(0), texts, saved: Saved::default(), time: 100, tid: 7 }
    }

    fn edge(&mut self, kind: Way, from: u64, from_sym: &str, to: u64, to_sym: &str) -> &mut Self {
        let (from_sym, to_sym) = (id(from_sym), id(to_sym));
        let edge = Edge { time: self.time, from, to, pid: 7, tid: self.tid, cpu: 0, from_sym, to_sym, kind };
        self.core.edge(&edge, &mut self.texts, &mut self.saved);
        self.time += 10;
        self
    }

    fn event(&mut self, code: Code, value: u64) -> &mut Self {
        let event = Event { time: self.time, cpu: 0, pid: 7, tid: self.tid, code, value };
        self.core.event(&event, &mut self.texts);
        self
    }

    fn main(&mut self) -> &mut Self {
        self.edge(Way::TraceBegin, 0, "", 0x1000, "main")
    }

    /// depth, kind, symbol, start, end, how start and end are known (first letters)
    fn rows(&mut self) -> Vec<String> {
        self.core.finish();
        let (_, rows) = self.core.take(Vec::new());
        let letter = |known: Known| &known.name()[..2];
        rows.iter()
            .map(|r| {
                let kind = r.kind.name();
                let symbol = &self.texts.all[r.symbol as usize];
                let (a, b) = (letter(r.start_known), letter(r.end_known));
                format!("{} {kind} {symbol} {}-{} {a} {b}", r.depth, r.start, r.end)
            })
            .collect()
    }
}

#[test]
fn a_call_lasts_to_its_return() {
    let mut m = Machine::new();
    m.main();
    m.edge(Way::Call, 0x1010, "main", 0x2000, "read").edge(Way::Return, 0x2040, "read", 0x1015, "main");
    assert_eq!(
        m.rows(),
        ["0 thread tid 7 100-120 in in", "1 function main 100-120 mi in", "2 function read 110-120 me me"]
    );
}

#[test]
fn a_system_call_ends_with_all_that_it_called() {
    let mut m = Machine::new();
    m.main();
    m.edge(Way::Syscall, 0x1010, "main", K, "entry_SYSCALL_64");
    m.edge(Way::Call, K + 8, "entry_SYSCALL_64", K + 0x100, "vfs_read");
    m.edge(Way::Sysret, K + 0x40, "entry_SYSCALL_64", 0x1012, "main");
    let rows = m.rows();
    assert_eq!(rows[2], "2 syscall entry_SYSCALL_64 110-130 me me");
    assert_eq!(rows[3], "3 function vfs_read 120-130 me in"); // its return was not seen
    assert_eq!(rows.len(), 4);
}

#[test]
fn an_exception_within_an_interrupt_returns_into_it() {
    let mut m = Machine::new();
    m.main();
    m.edge(Way::Interrupt, 0x1010, "main", K, "asm_sysvec_timer");
    m.edge(Way::Interrupt, K + 8, "asm_sysvec_timer", K + 0x100, "asm_exc_page_fault");
    m.edge(Way::Iret, K + 0x180, "asm_exc_page_fault", K + 8, "asm_sysvec_timer");
    m.edge(Way::Iret, K + 0x40, "asm_sysvec_timer", 0x1010, "main");
    let rows = m.rows();
    assert_eq!(rows[2], "2 hardirq asm_sysvec_timer 110-140 me me");
    assert_eq!(rows[3], "3 exception asm_exc_page_fault 120-130 me me");
    assert_eq!(rows.len(), 4); // main continues: no new row
}

#[test]
fn calls_are_cut_where_the_thread_leaves_and_go_on_where_it_comes_back() {
    let mut m = Machine::new();
    m.main();
    m.edge(Way::Call, 0x1010, "main", 0x2000, "read");
    m.tid = 8;
    m.edge(Way::Call, 0x5010, "handler", 0x6000, "restorer");
    m.tid = 7;
    m.edge(Way::Return, 0x2040, "read", 0x1015, "main");
    let rows = m.rows();
    assert_eq!(rows[1..3], ["1 function main 100-120 mi in", "2 function read 110-120 me in"]);
    assert_eq!(
        rows[6..],
        ["0 thread tid 7 130-130 in in", "1 function main 130-130 in in", "2 function read 130-130 in me"]
    );
}

#[test]
fn a_retpolines_target_takes_the_thunks_place() {
    let mut m = Machine::new();
    m.main();
    m.edge(Way::Call, 0x1010, "main", 0x7000, "__x86_indirect_thunk_rax");
    m.edge(Way::Call, 0x7000, "__x86_indirect_thunk_rax", 0x7010, "__x86_indirect_thunk_rax");
    m.edge(Way::Return, 0x7018, "__x86_indirect_thunk_rax", 0x2000, "read");
    m.edge(Way::Return, 0x2040, "read", 0x1015, "main");
    let rows = m.rows();
    assert_eq!(rows[2], "2 function __x86_indirect_thunk_rax 110-130 me me");
    assert_eq!(rows[4], "2 function read 130-140 me me");
    assert_eq!(rows.len(), 5);
}

#[test]
fn a_tail_call_follows_in_its_place_but_a_return_thunk_does_not() {
    let mut m = Machine::new();
    m.main();
    m.edge(Way::Call, 0x1010, "main", 0x2000, "read");
    m.edge(Way::TailCall, 0x2010, "read", 0x3000, "handler");
    m.edge(Way::TailCall, 0x3010, "handler", 0x4000, "__x86_return_thunk");
    m.edge(Way::Return, 0x4000, "__x86_return_thunk", 0x1015, "main");
    assert_eq!(m.rows()[2..], ["2 function read 110-120 me me", "2 function handler 120-140 me me"]);
}

#[test]
fn a_signals_handler_returns_to_what_it_interrupted() {
    let mut m = Machine::new();
    m.main();
    m.edge(Way::Interrupt, 0x1010, "main", K, "asm_sysvec_timer");
    m.edge(Way::Iret, K + 0x40, "asm_sysvec_timer", 0x8000, "handler");
    m.edge(Way::Return, 0x8020, "handler", 0x9000, "restorer");
    m.edge(Way::Syscall, 0x9008, "restorer", K + 0x200, "entry_SYSCALL_64");
    m.edge(Way::Iret, K + 0x240, "entry_SYSCALL_64", 0x1010, "main");
    m.edge(Way::Call, 0x1010, "main", 0x2000, "read");
    let rows = m.rows();
    assert_eq!(rows[3], "2 function handler 120-130 me me");
    assert_eq!(rows[4], "2 function restorer 130-150 me me");
    assert_eq!(rows[5], "3 syscall entry_SYSCALL_64 140-150 me me");
    assert_eq!(rows[6], "2 function read 160-160 me in");
}

#[test]
fn a_program_begins_anew_with_exec() {
    let mut m = Machine::new();
    m.main();
    m.edge(Way::Syscall, 0x1010, "main", K, "entry_SYSCALL_64");
    m.edge(Way::Iret, K + 0x40, "entry_SYSCALL_64", 0x4000, "_start");
    assert_eq!(m.rows()[3], "1 function _start 120-120 me in");
}

#[test]
fn a_program_whose_begin_has_no_name_begins_anew_with_exec() {
    let mut m = Machine::new();
    m.main().edge(Way::Call, 0x1010, "main", 0x2000, "read");
    m.edge(Way::Syscall, 0x2010, "read", K, "entry_SYSCALL_64");
    m.edge(Way::Call, K + 8, "entry_SYSCALL_64", K + 0x100, "begin_new_exec");
    // The thread is off CPU meanwhile.
    m.tid = 8;
    m.edge(Way::Call, 0x5010, "handler", 0x6000, "restorer");
    m.tid = 7;
    m.edge(Way::Return, K + 0x110, "begin_new_exec", K + 13, "entry_SYSCALL_64");
    m.edge(Way::Sysret, K + 0x40, "entry_SYSCALL_64", 0x7000, "");
    m.edge(Way::Call, 0x7010, "", 0x8000, "handler");
    let rows = m.rows();
    assert_eq!(
        rows[rows.len() - 2..],
        ["1 function [unknown] 160-170 me in", "2 function handler 170-170 me in"]
    );
}

#[test]
fn of_a_thread_that_is_not_known_nothing_goes_on() {
    let mut m = Machine::new();
    m.tid = 0;
    m.edge(Way::TraceBegin, 0, "", K, "do_idle");
    m.tid = 7;
    m.main();
    m.tid = -1;
    m.edge(Way::Call, 0x5010, "handler", 0x6000, "restorer");
    m.tid = 7;
    m.edge(Way::Call, 0x1010, "main", 0x2000, "read");
    m.tid = -1;
    m.edge(Way::Call, 0x9010, "vfs_read", 0x9100, "handler");
    let rows = m.rows();
    assert_eq!(
        rows[rows.len() - 3..][..2],
        ["0 thread tid -1 140-140 in in", "1 function vfs_read 140-140 mi in"]
    );
    assert_eq!(
        rows[4..7],
        [
            "0 thread tid -1 120-130 in in",
            "1 function handler 120-130 mi in",
            "2 function restorer 120-130 me in"
        ]
    );
}

#[test]
fn a_system_call_at_the_end_of_memory_returns_to_its_begin() {
    let mut m = Machine::new();
    m.main();
    m.edge(Way::Syscall, u64::MAX, "main", K, "entry_SYSCALL_64");
    m.edge(Way::Sysret, K + 0x40, "entry_SYSCALL_64", 1, "main");
    assert_eq!(m.rows()[2..], ["2 syscall entry_SYSCALL_64 110-120 me me"]);
}

#[test]
fn calls_go_on_over_code_that_is_not_traced() {
    let mut m = Machine::new();
    m.main();
    m.edge(Way::TraceEnd, 0x1010, "main", 0, "");
    m.edge(Way::TraceBegin, 0, "", 0x1012, "main");
    assert_eq!(
        m.rows(),
        ["0 thread tid 7 100-120 in in", "1 function main 100-120 mi in", "2 gap not traced 110-120 me me",]
    );
}

#[test]
fn a_return_to_an_unknown_caller_begins_it() {
    let mut m = Machine::new();
    m.main();
    m.edge(Way::Return, 0x1040, "main", 0x2015, "read");
    assert_eq!(m.rows()[1..], ["1 function main 100-110 mi me", "1 function read 110-110 mi in"]);
}

#[test]
fn a_stop_at_one_instruction_is_a_row_with_what_came_before() {
    let mut m = Machine::new();
    m.main();
    m.edge(Way::Call, 0x1010, "main", 0x2000, "read");
    m.event(Code::Stall, 500 | (Stall::Halt as u64) << 56).event(Code::StallAt, 0x2004);
    m.time += 500;
    m.edge(Way::Return, 0x2040, "read", 0x1015, "main");
    m.core.finish();
    let (_, rows) = m.core.take(Vec::new());
    let stall = &rows[3];
    assert_eq!((stall.kind, stall.start, stall.end, stall.address), (Kind::Stall, 120, 620, 0x2004));
    assert_eq!(&*m.texts.all[stall.before as usize], "read");
    assert_eq!(&*m.texts.all[stall.cause as usize], "HLT");
    assert_eq!(rows[2].children, 500); // read's self time does not include it
}

#[test]
fn rows_that_wait_too_long_are_cut() {
    let mut m = Machine::new();
    m.main();
    m.edge(Way::Call, 0x1010, "main", 0x2000, "read");
    m.core.cut(&mut m.texts);
    let (first, rows) = m.core.take(Vec::new());
    assert_eq!((first, rows.len()), (0, 3));
    m.edge(Way::Return, 0x2040, "read", 0x1015, "main");
    m.core.finish();
    let (first, rows) = m.core.take(Vec::new());
    assert_eq!((first, rows.len()), (3, 3));
    assert_eq!(rows[2].parent, 4); // numbers continue
    assert_eq!((rows[2].start_known, rows[2].end_known), (Known::Inferred, Known::Measured));
}

#[test]
fn rows_that_are_cut_in_a_gap_begin_no_later_than_it() {
    let mut m = Machine::new();
    m.main().edge(Way::TraceEnd, 0x1010, "main", 0, "");
    m.time += 50;
    m.event(Code::DecodeError, 0);
    m.core.cut(&mut m.texts);
    m.edge(Way::TraceBegin, 0, "", 0x1000, "main");
    let starts: Vec<u64> = {
        m.core.finish();
        m.core.take(Vec::new()).1.iter().map(|r| r.start).collect()
    };
    assert!(starts.is_sorted(), "{starts:?}");
}

#[test]
fn the_frequency_at_the_begin_of_a_trace_is_told_as_soon_as_something_runs() {
    let mut m = Machine::new();
    m.event(Code::Cbr, 30).main();
    m.edge(Way::Call, 0x1010, "main", 0x2000, "read").event(Code::Cbr, 8);
    m.core.finish();
    let (_, rows) = m.core.take(Vec::new());
    let told: Vec<_> =
        rows.iter().filter(|r| r.kind == Kind::Frequency).map(|r| (r.start, r.end, r.arg)).collect();
    assert_eq!(told, [(100, 100, 30), (120, 120, 8)]);
}
