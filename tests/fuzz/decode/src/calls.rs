// SPDX-License-Identifier: GPL-2.0-only
//! Converts bytes to a sequence of edges of one core, and checks the calls that are built from it.

use std::sync::Arc;

use nsight_decode::calls::fuzz::Step;
use nsight_decode::calls::Row;
use nsight_decode::edges::{Code, Edge, Event, Kind};

/// kind, time step, from, to, thread, symbols.
const BYTES: usize = 6;
const FIRST_EVENT: u8 = 16;
const CUT: u8 = 31;

const NAMES: [&str; 12] = [
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
];

pub fn names() -> Vec<(Arc<str>, Arc<str>)> {
    NAMES.iter().map(|name| ((*name).into(), "dso".into())).collect()
}

/// Few addresses, so that returns find their calls. The lowest and the highest addresses can overflow.
fn address(number: u8) -> u64 {
    match number {
        0 => 0,
        254 => u64::MAX - 1,
        255 => u64::MAX,
        1..=127 => 0x1000 + 0x10 * u64::from(number >> 1) + 5 * u64::from(number & 1),
        _ => 0xffff_ffff_8100_0000 + 0x10 * u64::from(number >> 1) + 5 * u64::from(number & 1),
    }
}

/// Advances time by up to centuries, ns; may also step back. Code that reads an edge file cannot rely on its order.
fn later(time: u64, step: u8) -> u64 {
    match step {
        0..=199 => time + u64::from(step),
        200..=249 => time.saturating_add(1 << (step - 195)).min(1 << 62),
        _ => time.saturating_sub(100 * u64::from(step - 249)),
    }
}

/// The steps that the bytes encode.
pub fn steps(bytes: &[u8]) -> Vec<Step> {
    let mut time = 1000;
    let step = |bytes: &[u8]| {
        let [kind, passed, from, to, thread, symbols] = bytes[..BYTES] else { unreachable!("as long") };
        time = later(time, passed);
        let (pid, tid, cpu) = (7, i32::from(thread & 7), 0);
        let kind = kind & 31;
        if kind == CUT {
            return Some(Step::Cut);
        }
        if let Some(code) = kind.checked_sub(FIRST_EVENT).and_then(|n| Code::from_number(u32::from(n) + 1)) {
            let value = u64::from(from) << 56 | later(0, to);
            return Some(Step::Event(Event { time, cpu, pid, tid, code, value }));
        }
        let (from_sym, to_sym) = (u32::from(symbols & 15), u32::from(symbols >> 4));
        let (from, to) = (address(from), address(to));
        let kind = Kind::from_number(kind)?;
        Some(Step::Edge(Edge { time, from, to, pid, tid, cpu, from_sym, to_sym, kind }))
    };
    bytes.chunks_exact(BYTES).filter_map(step).collect()
}

/// Rows nest and begin in order, and each row's time for children is the sum of theirs.
pub fn check(rows: &[Row]) {
    let mut children = vec![0_u64; rows.len()];
    let mut last = 0;
    for (number, row) in rows.iter().enumerate() {
        assert!(row.start <= row.end, "row {number} ends before it begins: {row:?}");
        assert!(row.start >= last, "row {number} begins before the one above it: {row:?}");
        last = row.start;
        if row.parent < 0 {
            assert_eq!(row.depth, 0, "row {number}");
            continue;
        }
        let parent = &rows[row.parent as usize];
        assert!((row.parent as usize) < number, "row {number} has a parent that begins later");
        assert_eq!(row.depth, parent.depth + 1, "row {number}");
        let inside = parent.start <= row.start && row.end <= parent.end;
        assert!(inside, "row {number} sticks out of the one it is in: {row:?} in {parent:?}");
        children[row.parent as usize] += row.end - row.start;
    }
    for (number, (row, children)) in rows.iter().zip(children).enumerate() {
        assert_eq!(row.children, children, "row {number}: {row:?}");
        assert!(children <= row.end - row.start, "row {number}'s children overlap: {row:?}");
    }
}
