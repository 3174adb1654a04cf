// SPDX-License-Identifier: GPL-2.0-only
//! Recursion that is deeper than the limit.

use super::super::frames::outermost;
use super::*;

impl Machine {
    /// `calls` calls of main by main, the first one at 0x1010.
    fn recurse(&mut self, calls: usize) -> usize {
        let full = (0..calls).filter(|_| {
            self.edge(Way::Call, 0x1010, "main", 0x1000, "main");
            let full = self.core.is_deep();
            if full {
                self.core.cut(&mut self.texts);
            }
            full
        });
        full.count()
    }
}

#[test]
fn of_calls_that_are_too_deep_the_outer_ones_are_given_up() {
    let mut m = Machine::new();
    m.main();
    // main and 16,383 more are cut to 4096; each 12,288 more again.
    assert_eq!(m.recurse(DEEPEST - 2), 0);
    assert_eq!(m.recurse(1), 1);
    assert_eq!(m.core.stack.len(), KEPT);
    assert_eq!(m.recurse(3 * (DEEPEST - KEPT) - 1), 2);
    assert_eq!(m.core.forgotten, 3 * (DEEPEST - KEPT) as u64);
    // The thread's row, one row per call, and at each cut new rows for the calls that continue.
    let expected = (1 + DEEPEST) + 2 * (1 + KEPT + DEEPEST - KEPT) + (1 + KEPT + DEEPEST - KEPT - 1);
    assert_eq!(m.rows().len(), expected);
}

#[test]
fn returns_beyond_what_is_followed_find_who_called() {
    let mut m = Machine::new();
    m.main();
    m.edge(Way::Call, 0x1020, "main", 0x2000, "read");
    m.edge(Way::Call, 0x2010, "read", 0x1000, "main");
    m.recurse(DEEPEST);
    let open = m.core.stack.len();
    for _ in 0..open {
        m.edge(Way::Return, 0x1030, "main", 0x1015, "main");
    }
    // From the outermost main that was kept into one that was dropped.
    assert_eq!(m.core.stack.len(), 0);
    m.edge(Way::Return, 0x1030, "main", 0x2015, "read");
    let rows = m.rows();
    let last = rows.last().unwrap();
    assert!(last.starts_with("1 function read ") && last.ends_with(" mi in"), "{last}");
}

#[test]
fn a_switch_of_threads_keeps_the_innermost_calls() {
    let mut m = Machine::new();
    m.main();
    m.recurse(KEPT + 9);
    m.edge(Way::Syscall, 0x1010, "main", K, "entry_SYSCALL_64");
    m.tid = 8;
    m.edge(Way::Call, 0x5010, "handler", 0x6000, "restorer");
    m.tid = 7;
    m.edge(Way::Sysret, K + 0x40, "entry_SYSCALL_64", 0x1012, "main");
    assert_eq!((m.core.forgotten, m.core.stack.len()), (11, KEPT - 1));
    assert_eq!(context(&m.core.stack), 0);
}

#[test]
fn an_interrupt_in_a_system_call_has_both_around_it() {
    let mut m = Machine::new();
    m.main();
    m.edge(Way::Syscall, 0x1010, "main", K, "entry_SYSCALL_64");
    m.edge(Way::Call, K + 8, "entry_SYSCALL_64", K + 0x100, "vfs_read");
    m.edge(Way::Interrupt, K + 0x108, "vfs_read", K + 0x200, "asm_sysvec_timer");
    m.edge(Way::Call, K + 0x208, "asm_sysvec_timer", K + 0x300, "do_idle");
    assert_eq!((context(&m.core.stack), outermost(&m.core.stack)), (4, Some(1)));
    m.edge(Way::Iret, K + 0x240, "asm_sysvec_timer", K + 0x108, "vfs_read");
    assert_eq!((context(&m.core.stack), outermost(&m.core.stack)), (2, Some(1)));
    m.edge(Way::Sysret, K + 0x40, "entry_SYSCALL_64", 0x1012, "main");
    assert_eq!((context(&m.core.stack), outermost(&m.core.stack)), (0, None));
}

#[test]
fn a_system_call_of_a_handler_returns_into_it_although_it_interrupted_the_same_place() {
    let mut m = Machine::new();
    m.main();
    // A signal after a system call at 0x1010; its handler makes the same system call.
    m.edge(Way::Syscall, 0x1010, "main", K, "entry_SYSCALL_64");
    m.edge(Way::Sysret, K + 0x40, "entry_SYSCALL_64", 0x3000, "handler");
    m.edge(Way::Call, 0x3010, "handler", 0x1000, "main");
    m.edge(Way::Syscall, 0x1010, "main", K, "entry_SYSCALL_64");
    m.edge(Way::Sysret, K + 0x40, "entry_SYSCALL_64", 0x1012, "main");
    assert_eq!(m.core.stack.len(), 3);
}
