// SPDX-License-Identifier: GPL-2.0-only
//! Where a return leads to: which calls end, also by a tail call or a signal.

use super::super::row::{Kind, Known};
use super::super::texts::Function;
use super::{is_kernel, Core, Entry, Frame};

const SYSCALL_LEN: u64 = 2;

impl Core {
    pub(super) fn ret(&mut self, to: u64, function: Function, time: u64) {
        let context = self.context();
        if let Some(at) = self.stack[context..].iter().rposition(|f| f.entry.returns_to(to)) {
            return self.pop_to(context + at, time);
        }
        // A retpoline's return is a jump: who called the thunk called its target.
        let mut entry = None;
        while self.stack.len() > context && self.stack.last().is_some_and(|f| f.function.is_thunk) {
            entry = self.pop(time, Known::Measured).map(|f| f.entry);
        }
        if let Some(entry) = entry {
            self.before = function.symbol;
            return self.enter(entry, Kind::Function, function, to, time, Known::Measured);
        }
        // A signal's handler returns to code that the kernel chose, which returns to the kernel.
        let signal = self.stack[context..].iter().rposition(|f| matches!(f.entry, Entry::Signal(_)));
        if let Some(at) = signal.map(|at| at + context) {
            let entry = self.stack[at].entry;
            self.pop_to(at, time);
            return self.enter(entry, Kind::Function, function, to, time, Known::Measured);
        }
        self.pop_to(context, time);
        self.find(function, to, time);
    }

    pub(super) fn tail_call(&mut self, to: Function, address: u64, time: u64) {
        match self.stack.last() {
            Some(frame) if !frame.entry.is_boundary() && !to.is_return_thunk => {
                let entry = frame.entry;
                self.pop(time, Known::Measured);
                self.enter(entry, Kind::Function, to, address, time, Known::Measured);
            }
            _ => {}
        }
    }

    pub(super) fn back_to_kernel(&mut self, to: u64, function: Function, time: u64) {
        let interrupt = self.stack.iter().rposition(|f| matches!(f.entry, Entry::Interrupt(_)));
        self.pop_to(interrupt.unwrap_or(0), time);
        if self.stack.is_empty() {
            self.find(function, to, time);
        }
    }

    pub(super) fn back_to_user(&mut self, to: u64, function: Function, time: u64) {
        let first = self.stack.iter().position(|f| f.entry.is_boundary());
        let kernel = self.stack.iter().position(|f| is_kernel(f.address));
        let left = first.or(kernel).unwrap_or(self.stack.len());
        let resumes = match first.map(|at| self.stack[at].entry) {
            Some(Entry::Syscall(from)) => Some(from.wrapping_add(SYSCALL_LEN)),
            Some(Entry::Interrupt(at)) => Some(at),
            _ => None,
        };
        self.pop_to(left, time);
        // From a signal's handler, by sigreturn.
        if let Some(at) = self.stack.iter().rposition(|f| f.entry == Entry::Signal(to)) {
            return self.pop_to(at, time);
        }
        let goes_on = |f: &Frame| f.function.symbol == function.symbol;
        match (resumes, self.stack.last()) {
            (Some(resumes), Some(frame)) if resumes != to && !goes_on(frame) => {
                if function.is_program_start {
                    self.pop_to(0, time);
                    self.enter(Entry::Unknown, Kind::Function, function, to, time, Known::Measured);
                } else {
                    let entry = Entry::Signal(resumes);
                    self.enter(entry, Kind::Function, function, to, time, Known::Measured);
                }
            }
            (_, None) => self.find(function, to, time),
            _ => {}
        }
    }
}
