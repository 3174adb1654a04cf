// SPDX-License-Identifier: GPL-2.0-only
//! Constants of the perf.data format: tools/perf/Documentation/perf.data-file-format.txt and
//! include/uapi/linux/perf_event.h in the kernel's tree.

pub const MAGIC: &[u8; 8] = b"PERFILE2";
pub const FILE_HEADER: usize = 104;
pub const RECORD_HEADER: usize = 8;

pub mod record {
    pub const MMAP: u32 = 1;
    pub const COMM: u32 = 3;
    pub const SAMPLE: u32 = 9;
    pub const MMAP2: u32 = 10;
    pub const AUX: u32 = 11;
    pub const ITRACE_START: u32 = 12;
    pub const SWITCH_CPU_WIDE: u32 = 15;
    /// Record types from here on are perf's, without sample id.
    pub const USER: u32 = 64;
    pub const AUXTRACE_INFO: u32 = 70;
    pub const AUXTRACE: u32 = 71;
    pub const TIME_CONV: u32 = 79;
    pub const COMPRESSED: u32 = 81;
    pub const COMPRESSED2: u32 = 83;
}

pub mod feature {
    pub const HOSTNAME: usize = 3;
    pub const OSRELEASE: usize = 4;
    pub const ARCH: usize = 6;
    pub const NRCPUS: usize = 7;
    pub const CPUID: usize = 9;
    pub const EVENT_DESC: usize = 12;
    pub const PMU_MAPPINGS: usize = 16;
    pub const AUXTRACE: usize = 18;
    pub const COUNT: usize = 256;
}

/// Bits of `perf_event_attr.sample_type` that records other than samples have too.
pub mod sample {
    pub const IP: u64 = 1 << 0;
    pub const TID: u64 = 1 << 1;
    pub const TIME: u64 = 1 << 2;
    pub const ID: u64 = 1 << 6;
    pub const CPU: u64 = 1 << 7;
    pub const STREAM_ID: u64 = 1 << 9;
    pub const IDENTIFIER: u64 = 1 << 16;
}

/// Offsets in `perf_event_attr`.
pub mod attr {
    pub const TYPE: usize = 0;
    pub const SIZE: usize = 4;
    pub const CONFIG: usize = 8;
    pub const PERIOD: usize = 16;
    pub const SAMPLE_TYPE: usize = 24;
    pub const FLAGS: usize = 40;

    pub const DISABLED: u64 = 1 << 0;
    pub const EXCLUDE_USER: u64 = 1 << 4;
    pub const EXCLUDE_KERNEL: u64 = 1 << 5;
    pub const EXCLUDE_HV: u64 = 1 << 6;
    pub const MMAP: u64 = 1 << 8;
    pub const COMM: u64 = 1 << 9;
    pub const FREQ: u64 = 1 << 10;
    pub const SAMPLE_ID_ALL: u64 = 1 << 18;
    pub const KSYMBOL: u64 = 1 << 31;
    pub const TEXT_POKE: u64 = 1 << 33;

    pub const TYPE_SOFTWARE: u32 = 1;
    pub const CONFIG_DUMMY: u64 = 9;
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes(b.try_into().unwrap()))
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().unwrap()))
}

pub fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

pub fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// A perf record: type, misc 0, size, body.
pub fn record(kind: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(RECORD_HEADER + body.len());
    bytes.extend(kind.to_le_bytes());
    bytes.extend(0u16.to_le_bytes());
    bytes.extend(((RECORD_HEADER + body.len()) as u16).to_le_bytes());
    bytes.extend(body);
    bytes
}

/// A string of a header feature: length, bytes padded with zeros to 64.
pub fn string(text: &str) -> Vec<u8> {
    let length = (text.len() + 1).next_multiple_of(64);
    let mut bytes = (length as u32).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes.resize(4 + length, 0);
    bytes
}
