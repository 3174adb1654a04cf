// SPDX-License-Identifier: GPL-2.0-only
//! A call that is open, and the system call or interrupt that it belongs to.

use super::super::row::Kind;
use super::super::texts::Function;

/// A call instruction is no longer than this, bytes.
const LONGEST_CALL: u64 = 15;

/// How a frame was entered, and with it where it returns to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// By the call instruction at an address.
    Call(u64),
    /// Before it was seen.
    Unknown,
    Syscall(u64),
    /// By a system call that ran another program.
    Exec,
    Interrupt(u64),
    /// A handler of a signal; what it interrupted goes on at an address.
    Signal(u64),
}

impl Entry {
    pub fn is_boundary(self) -> bool {
        matches!(self, Self::Syscall(_) | Self::Exec | Self::Interrupt(_))
    }

    pub fn returns_to(self, to: u64) -> bool {
        matches!(self, Self::Call(from) if to > from && to - from <= LONGEST_CALL)
    }
}

/// A call that is open; while its thread is off the core, without a row.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    pub row: i64,
    /// Where what belongs to the system call or interrupt around it begins. To look for that would take as long as calls are
    /// deep, at each return.
    pub context: usize,
    pub entry: Entry,
    pub kind: Kind,
    pub function: Function,
    pub address: u64,
}

/// Frames from here on belong to the innermost system call or interrupt.
pub fn context(stack: &[Frame]) -> usize {
    match stack.last() {
        Some(frame) if frame.entry.is_boundary() => stack.len(),
        Some(frame) => frame.context,
        None => 0,
    }
}

/// The frame of the outermost system call or interrupt.
pub fn outermost(stack: &[Frame]) -> Option<usize> {
    let around = |&at: &usize| stack[at].context.checked_sub(1);
    std::iter::successors(context(stack).checked_sub(1), around).last()
}
