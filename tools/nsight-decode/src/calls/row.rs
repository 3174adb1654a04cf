// SPDX-License-Identifier: GPL-2.0-only
//! A row of `calls`.

/// What a row of the table is. In the order of `KINDS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Thread,
    Idle,
    Syscall,
    Hardirq,
    Exception,
    Function,
    /// Not decoded, not traced or lost.
    Gap,
    /// The core stood at one instruction.
    Stall,
    Ptwrite,
    Power,
    Frequency,
}

pub const KINDS: [&str; 11] = [
    "thread",
    "idle",
    "syscall",
    "hardirq",
    "exception",
    "function",
    "gap",
    "stall",
    "ptwrite",
    "power",
    "frequency",
];

/// How an end of a call is known. In the order of `KNOWN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Known {
    Measured,
    /// Cut at a context switch, or at the begin or end of the trace.
    Inferred,
    /// In a loss, or before what was traced.
    Missing,
}

pub const KNOWN: [&str; 3] = ["measured", "inferred", "missing"];

/// One row of `calls`. Times in ns of perf's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Number of the enclosing row of this core; -1: none.
    pub parent: i64,
    pub depth: u32,
    pub kind: Kind,
    /// Numbers of texts.
    pub symbol: u32,
    pub dso: u32,
    pub pid: i32,
    pub tid: i32,
    pub start: u64,
    pub end: u64,
    /// Sum of the durations of its children.
    pub children: u64,
    pub start_known: Known,
    pub end_known: Known,
    pub arg: i64,
    pub address: u64,
    /// Gaps and stalls: the last function that was called before, and why.
    pub before: u32,
    pub cause: u32,
}
