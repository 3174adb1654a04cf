// SPDX-License-Identifier: GPL-2.0-only
//! A perf.data file around Intel PT data, with the side-band of a machine that runs the fixed program.

use crate::program::{KERNEL, USER};

/// The recording options that a first byte selects.
#[derive(Clone, Copy)]
pub struct Options {
    pub ret_compression: bool,
    pub cyc: bool,
    pub mtc: bool,
    pub per_thread: bool,
    pub snapshot: bool,
    /// Family 6, this model: determines the errata.
    pub model: u8,
}

const PID: i32 = 7;
const ATTR: usize = 136;
const HEADER: usize = 104;
const TYPE_PT: u32 = 8;
const TSC_BIT: u64 = 1 << 10;
const NORETCOMP: u64 = 1 << 11;
const MTC_BIT: u64 = 1 << 9;
const MTC_FREQ: u64 = 0xf << 14;
const CYC_BIT: u64 = 1 << 1;

fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn numbers(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend(misc.to_le_bytes());
    bytes.extend((8 + body.len() as u16).to_le_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// A kernel record, followed by pid, tid, time and CPU.
fn event(kind: u32, misc: u16, body: &[u8], time: u64) -> Vec<u8> {
    let mut body = body.to_vec();
    body.extend(numbers(&[PID, PID]));
    body.extend(words(&[time, 0]));
    record(kind, misc, &body)
}

fn text(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize((name.len() + 1).next_multiple_of(8), 0);
    bytes
}

fn mmap(pid: i32, begin: u64, size: u64, offset: u64, name: &str, misc: u16) -> Vec<u8> {
    let body = [numbers(&[pid, pid]), words(&[begin, size, offset]), text(name)].concat();
    event(1, misc, &body, 1)
}

fn poke(time: u64, at: u64, old: &[u8], new: &[u8]) -> Vec<u8> {
    let mut body = words(&[KERNEL + at]);
    body.extend([old.len() as u8, 0, new.len() as u8, 0]);
    body.extend(old.iter().chain(new));
    body.resize(body.len().next_multiple_of(8), 0);
    event(20, 0, &body, time)
}

fn ksymbol(time: u64, address: u64, size: u32, name: &str) -> Vec<u8> {
    let body = [words(&[address]), size.to_le_bytes().to_vec(), vec![1, 0, 0, 0], text(name)].concat();
    event(17, 0, &body, time)
}

fn switch(time: u64, out: bool, other: i32) -> Vec<u8> {
    event(15, if out { 1 << 13 } else { 0 }, &numbers(&[other, other]), time)
}

fn side_band() -> Vec<u8> {
    [
        mmap(-1, KERNEL, 4096, KERNEL, "[kernel.kallsyms]entry_SYSCALL_64", 1),
        event(3, 0, &[numbers(&[PID, PID]), text("server")].concat(), 1),
        mmap(PID, USER, 4096, 0x1000, "/a", 2),
        mmap(PID, USER + 4096, 1 << 40, 0x2000, "/b", 2),
        event(7, 0, &[numbers(&[PID + 1, PID, PID + 1, PID]), words(&[2])].concat(), 2),
        switch(400, true, PID + 1),
        switch(500, false, PID),
        poke(600, 0x140, &[0xff], &[0x90]),
        poke(u64::MAX, 0xfff, &[0x90, 0x90], &[0xc3, 0xc3]),
        ksymbol(5, KERNEL + 0x2000, 64, "bpf_prog_1"),
    ]
    .concat()
}

/// AUXTRACE_INFO, with 2 ticks of TSC per ns.
fn info(options: Options) -> Vec<u8> {
    let (shift, mult, zero) = (1, 1, 0);
    let snapshot = options.snapshot.into();
    let per_cpu = (!options.per_thread).into();
    let body = [1, TYPE_PT.into(), shift, mult, zero, 1, TSC_BIT, NORETCOMP, 3, snapshot, per_cpu];
    let rates = [MTC_BIT, MTC_FREQ, 84, 1, CYC_BIT, 20];
    record(70, 0, &[words(&body), words(&rates)].concat())
}

fn aux(piece: &[u8], offset: usize, options: Options) -> Vec<u8> {
    let mut body = words(&[piece.len() as u64, offset as u64, 1 << 20]);
    body.extend(numbers(&[0, PID, if options.per_thread { -1 } else { 0 }, 0]));
    [record(71, 0, &body), piece.to_vec()].concat()
}

fn attribute(kind: u32, config: u64) -> Vec<u8> {
    let mut bytes = [kind.to_le_bytes(), (ATTR as u32).to_le_bytes()].concat();
    // sample_type: TID, TIME, CPU; sample_id_all
    bytes.extend(words(&[config, 1, 1 << 1 | 1 << 2 | 1 << 7, 0, 1 << 18]));
    bytes.resize(ATTR + 16, 0);
    bytes
}

fn config(options: Options) -> u64 {
    let set = |on: bool, bits: u64| if on { bits } else { 0 };
    TSC_BIT
        | set(!options.ret_compression, NORETCOMP)
        | set(options.cyc, CYC_BIT)
        | set(options.mtc, MTC_BIT | 3 << 14)
}

/// The whole file. `pieces`: data of one buffer, as perf took them.
pub fn of(pieces: &[&[u8]], options: Options) -> Vec<u8> {
    let attributes = attribute(TYPE_PT, config(options));
    let mut data = [info(options), side_band()].concat();
    let mut offset = 0;
    for piece in pieces {
        data.extend(aux(piece, offset, options));
        offset += piece.len();
    }
    let cpuid = text(&format!("GenuineIntel,6,{},1", options.model));
    let begin = HEADER + attributes.len();
    let features_at = begin + data.len();
    let mut bytes = b"PERFILE2".to_vec();
    bytes.extend(words(&[HEADER as u64, attributes.len() as u64]));
    bytes.extend(words(&[HEADER as u64, attributes.len() as u64, begin as u64, data.len() as u64, 0, 0]));
    bytes.extend(words(&[1 << 9, 0, 0, 0])); // CPUID
    bytes.extend(attributes);
    bytes.extend(data);
    bytes.extend(words(&[features_at as u64 + 16, 4 + cpuid.len() as u64]));
    bytes.extend((cpuid.len() as u32).to_le_bytes());
    bytes.extend(cpuid);
    bytes
}
