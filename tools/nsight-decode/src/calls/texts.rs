// SPDX-License-Identifier: GPL-2.0-only
//! Names of functions, objects and threads, each stored once.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::edges::ThreadName;

pub const UNKNOWN: &str = "[unknown]";

/// Texts by their number, shared with the threads that write rows.
pub type Names = Vec<Arc<str>>;

#[derive(Default)]
pub struct Texts {
    pub all: Arc<Names>,
    numbers: HashMap<Arc<str>, u32>,
    /// By a stream's symbol number: symbol, object, and the kind of code.
    functions: Vec<Function>,
    /// By thread and time.
    threads: HashMap<i32, BTreeMap<u64, u32>>,
}

/// A symbol of the edge stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Function {
    pub symbol: u32,
    pub dso: u32,
    /// The symbol of the whole function, if the compiler moved a part of it elsewhere.
    whole: u32,
    /// It has a name.
    pub is_known: bool,
    /// A kernel entry for exceptions; otherwise, the entry is for an interrupt.
    pub is_exception: bool,
    /// A retpoline: its return leads to a new function, not back.
    pub is_thunk: bool,
    /// A return thunk: functions jump there to return.
    pub is_return_thunk: bool,
    /// Where a program begins after exec.
    pub is_program_start: bool,
    /// A kernel function after which the old program no longer exists.
    pub is_exec: bool,
}

impl Function {
    /// Whether both are the same function, or parts of it.
    pub fn is_with(&self, other: &Self) -> bool {
        (self.whole, self.dso) == (other.whole, other.dso)
    }
}

impl Texts {
    pub fn number(&mut self, text: &str) -> u32 {
        if let Some(&known) = self.numbers.get(text) {
            return known;
        }
        let text: Arc<str> = text.into();
        let number = self.all.len() as u32;
        Arc::make_mut(&mut self.all).push(text.clone());
        self.numbers.insert(text, number);
        number
    }

    pub fn symbols(&mut self, new: &[(Arc<str>, Arc<str>)]) {
        for (symbol, dso) in new {
            let name: &str = if symbol.is_empty() { UNKNOWN } else { symbol };
            let function = Function {
                symbol: self.number(name),
                dso: self.number(dso),
                whole: self.number(name.split_once(".cold").map_or(name, |(whole, _)| whole)),
                is_known: name != UNKNOWN,
                is_exception: is_exception(name),
                is_thunk: name.starts_with("__x86_indirect_"),
                is_return_thunk: name.contains("_return_thunk") || name.starts_with("srso_"),
                is_program_start: name == "_start",
                is_exec: is_exec(name),
            };
            self.functions.push(function);
        }
    }

    pub fn function(&mut self, id: u32) -> Function {
        match self.functions.get(id as usize) {
            Some(&function) => function,
            None => {
                let (symbol, dso) = (self.number(UNKNOWN), self.number(""));
                Function { symbol, dso, whole: symbol, ..Function::default() }
            }
        }
    }

    pub fn names(&mut self, names: &[ThreadName]) {
        for name in names {
            let number = self.number(&name.name);
            self.threads.entry(name.tid).or_default().insert(name.time, number);
        }
    }

    /// Name of a thread at a time; for a time before its first name, the first name.
    pub fn thread(&mut self, tid: i32, time: u64) -> u32 {
        if tid == 0 {
            return self.number("swapper");
        }
        let known = self.threads.get(&tid).and_then(|names| {
            names.range(..=time).next_back().or_else(|| names.iter().next()).map(|(_, &number)| number)
        });
        known.unwrap_or_else(|| self.number(&format!("tid {tid}")))
    }
}

/// The names in fs/exec.c; the second one before 5.8.
fn is_exec(name: &str) -> bool {
    matches!(name, "begin_new_exec" | "flush_old_exec")
}

/// The names in arch/x86/entry/entry_64.S and, before 5.8, in arch/x86/entry/traps.
fn is_exception(name: &str) -> bool {
    const OLD: [&str; 8] = [
        "page_fault",
        "general_protection",
        "divide_error",
        "invalid_op",
        "debug",
        "int3",
        "device_not_available",
        "async_page_fault",
    ];
    name.starts_with("asm_exc_") && name != "asm_exc_nmi" || OLD.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_the_name_of_its_time() {
        let mut texts = Texts::default();
        let name = |time, name: &str| ThreadName { time, pid: 5, tid: 6, name: name.into() };
        texts.names(&[name(100, "sh"), name(200, "ls")]);
        let mut at = |time| {
            let number = texts.thread(6, time);
            texts.all[number as usize].to_string()
        };
        assert_eq!((at(50), at(150), at(200)), ("sh".into(), "sh".into(), "ls".into()));
        let other = texts.thread(9, 100);
        assert_eq!(&*texts.all[other as usize], "tid 9");
    }

    #[test]
    fn faults_are_exceptions_and_interrupts_are_not() {
        assert!(is_exception("asm_exc_page_fault") && is_exception("page_fault"));
        assert!(!is_exception("asm_exc_nmi") && !is_exception("asm_sysvec_apic_timer_interrupt"));
    }
}
