// SPDX-License-Identifier: GPL-2.0-only
//! The parts of a stream of edges, and the trait of its consumers.

use std::sync::Arc;

use crate::error::Result;
use crate::numbered::numbered;

numbered! {
    /// What an edge is. The numbers are part of the file format.
    pub enum Kind: u8 {
        Call = 1,
        Return = 2,
        Syscall = 3,
        Sysret = 4,
        /// Interrupt or exception.
        Interrupt = 5,
        Iret = 6,
        TraceBegin = 7,
        TraceEnd = 8,
        /// A jump to the start of another function.
        TailCall = 9,
        /// int n, int3.
        SoftInterrupt = 10,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// ns of perf's clock.
    pub time: u64,
    pub from: u64,
    pub to: u64,
    pub pid: i32,
    pub tid: i32,
    pub cpu: i32,
    /// Numbers of (symbol, object); 0: unknown.
    pub from_sym: u32,
    pub to_sym: u32,
    pub kind: Kind,
}

numbered! {
    /// What an event is. The numbers are part of the file format.
    pub enum Code: u32 {
        /// value: perf's error code
        DecodeError = 1,
        Overflow = 2,
        /// value: bytes that were kept of the piece
        AuxTruncated = 3,
        /// value: how many
        LostRecords = 4,
        Ptwrite = 5,
        /// value: see `power`
        Power = 6,
        /// value: core:bus ratio
        Cbr = 7,
        SwitchIn = 8,
        SwitchOut = 9,
        AuxPartial = 10,
        /// The core stood at one instruction; value: for how many ns (bits 0-55), class (56-63).
        Stall = 11,
        /// Address of that instruction: comes directly after the stall.
        StallAt = 12,
        /// Code of a KVM guest ran; it is not decoded.
        Guest = 13,
        /// Not decoded because no --time window selected it; value: for how many ns.
        Skipped = 14,
        /// The trace of a core or thread ends. It was decoded up to here.
        Until = 15,
    }
}

impl Code {
    /// Whether the event's place in the order of edges matters.
    pub fn is_placed(self) -> bool {
        use Code::*;
        matches!(
            self,
            DecodeError | Overflow | AuxTruncated | AuxPartial | Stall | StallAt | Guest | Skipped | Until
        )
    }
}

/// Value of a `Code::DecodeError` that perf does not have: after a loss, a compressed return whose call was before the
/// loss.
pub const COMPRESSED_RETURN: u64 = 100;

/// Bits 56-63 of the value of a `Code::Power` event, and what its lower bits hold.
pub mod power {
    /// hints | extensions << 32
    pub const MWAIT: u64 = 1 << 56;
    /// C-state | sub-state << 8 | by hardware << 16
    pub const PWRE: u64 = 2 << 56;
    pub const EXSTOP: u64 = 3 << 56;
    /// last C-state | deepest << 8 | wake reasons << 16 (1 interrupt, 2 store, 4 autonomous)
    pub const PWRX: u64 = 4 << 56;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub time: u64,
    pub cpu: i32,
    pub pid: i32,
    pub tid: i32,
    pub code: Code,
    pub value: u64,
}

/// Name of a thread from a time on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadName {
    pub time: u64,
    pub pid: i32,
    pub tid: i32,
    pub name: String,
}

/// Takes edges and events of all CPUs. Those of one CPU come in order; between CPUs, times may step back a little.
pub trait Sink {
    fn edge(&mut self, edge: &Edge) -> Result<()>;
    fn event(&mut self, event: &Event) -> Result<()>;
    /// New symbols that later edges may refer to: (symbol, object) for the next numbers.
    fn symbols(&mut self, new: &[(Arc<str>, Arc<str>)]) -> Result<()>;
    fn names(&mut self, names: &[ThreadName]) -> Result<()>;

    /// Whether it makes anything of switches of threads: edges name their threads, and switches are frequent.
    fn takes_switches(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_format() {
        for number in 1..=15 {
            assert_eq!(Code::from_number(number).map(|code| code as u32), Some(number));
        }
        for number in 1..=10 {
            assert_eq!(Kind::from_number(number).map(|kind| kind as u8), Some(number));
        }
        assert_eq!((Kind::from_number(0), Kind::from_number(11)), (None, None));
        assert_eq!((Code::from_number(0), Code::from_number(16)), (None, None));
    }
}
