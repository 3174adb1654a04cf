// SPDX-License-Identifier: GPL-2.0-only
//! A row of `calls`.

use crate::numbered::named;

named! {
    /// What a row of the table is.
    pub enum Kind {
        Thread "thread",
        Idle "idle",
        Syscall "syscall",
        Hardirq "hardirq",
        Exception "exception",
        Function "function",
        /// Not decoded, not traced or lost.
        Gap "gap",
        /// The core stood at one instruction.
        Stall "stall",
        Ptwrite "ptwrite",
        Power "power",
        Frequency "frequency",
    }
}

named! {
    /// How the begin or end of a call is known.
    pub enum Known {
        Measured "measured",
        /// Cut at a context switch, or at the begin or end of the trace.
        Inferred "inferred",
        /// Lies in a loss, or before tracing began.
        Missing "missing",
    }
}

/// One row of `calls`. Times in ns of perf's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Number of the enclosing row on this core; -1: none.
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
    /// Gaps and stalls: the last function that was called before it, and the cause.
    pub before: u32,
    pub cause: u32,
}
