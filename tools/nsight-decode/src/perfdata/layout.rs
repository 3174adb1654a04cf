// SPDX-License-Identifier: GPL-2.0-only
//! Constants of the perf.data format: tools/perf/Documentation/perf.data-file-format.txt and
//! include/uapi/linux/perf_event.h in the kernel's tree.

pub const MAGIC: &[u8; 8] = b"PERFILE2";
pub const FILE_HEADER: u64 = 104;
pub const PIPE_HEADER: u64 = 16;

pub mod record {
    pub const MMAP: u32 = 1;
    pub const LOST: u32 = 2;
    pub const COMM: u32 = 3;
    pub const FORK: u32 = 7;
    pub const SAMPLE: u32 = 9;
    pub const MMAP2: u32 = 10;
    pub const AUX: u32 = 11;
    pub const ITRACE_START: u32 = 12;
    pub const LOST_SAMPLES: u32 = 13;
    pub const SWITCH: u32 = 14;
    pub const SWITCH_CPU_WIDE: u32 = 15;
    pub const KSYMBOL: u32 = 17;
    pub const TEXT_POKE: u32 = 20;
    /// Record types from here on are perf's, without sample id.
    pub const USER: u32 = 64;
    pub const AUXTRACE_INFO: u32 = 70;
    pub const AUXTRACE: u32 = 71;
    pub const COMPRESSED: u32 = 81;
    pub const COMPRESSED2: u32 = 83;
    /// The last types of Linux 6.16: of the kernel, and of perf.
    pub const LAST_KERNEL: u32 = 22;
    pub const LAST: u32 = 85;
}

/// A record type that this program does not know: the file is from a newer perf or kernel.
pub fn is_unknown(kind: u32) -> bool {
    kind == 0 || kind > record::LAST || (record::LAST_KERNEL + 1..record::USER).contains(&kind)
}

/// Bits of a record's `misc`.
pub mod misc {
    pub const CPUMODE: u16 = 7;
    pub const KERNEL: u16 = 1;
    pub const GUEST_KERNEL: u16 = 4;
    pub const GUEST_USER: u16 = 5;
    /// MMAP: data. COMM: by exec. FORK: made by perf. SWITCH: out.
    pub const BIT13: u16 = 1 << 13;
    /// MMAP2 with a build id in place of device and inode.
    pub const MMAP_BUILD_ID: u16 = 1 << 14;
}

/// Flags of an AUX record.
pub mod aux {
    pub const TRUNCATED: u64 = 1;
    pub const OVERWRITE: u64 = 2;
    pub const PARTIAL: u64 = 4;
}

pub mod feature {
    pub const HOSTNAME: u8 = 3;
    pub const OSRELEASE: u8 = 4;
    pub const ARCH: u8 = 6;
    pub const CPUID: u8 = 9;
    pub const BPF_PROG_INFO: u8 = 25;
    pub const COUNT: u8 = 255;
}

/// Bits of `perf_event_attr.sample_type` that records other than samples have too.
pub mod sample {
    pub const TID: u64 = 1 << 1;
    pub const TIME: u64 = 1 << 2;
    pub const ID: u64 = 1 << 6;
    pub const CPU: u64 = 1 << 7;
    pub const STREAM_ID: u64 = 1 << 9;
    pub const IDENTIFIER: u64 = 1 << 16;
}

/// Offsets in `perf_event_attr`, and bits of its flags.
pub mod attr {
    pub const TYPE: usize = 0;
    pub const CONFIG: usize = 8;
    pub const SAMPLE_TYPE: usize = 24;
    pub const FLAGS: usize = 40;

    pub const EXCLUDE_USER: u64 = 1 << 4;
    pub const EXCLUDE_KERNEL: u64 = 1 << 5;
    pub const SAMPLE_ID_ALL: u64 = 1 << 18;
}

/// Bits of an Intel PT event's `config` that AUXTRACE_INFO does not report: arch/x86/events/intel/pt.c.
pub mod pt {
    /// BRANCH has a meaning; without this bit, the kernel sets BRANCH.
    pub const PASS: u64 = 1 << 0;
    pub const BRANCH: u64 = 1 << 13;
    pub const NO_TNT: u64 = 1 << 55;
}

/// The u16, u32 or u64 at `at`; 0 beyond the end: a short record must not stop the others.
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]))
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

pub fn i32_at(bytes: &[u8], at: usize) -> i32 {
    u32_at(bytes, at) as i32
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    // Nearly always, all of it is there.
    match bytes.get(at..).and_then(<[u8]>::first_chunk) {
        Some(word) => u64::from_le_bytes(*word),
        None => u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at.saturating_add(4))) << 32,
    }
}

/// The text at `at`, up to its NUL or the end.
pub fn text_at(bytes: &[u8], at: usize) -> String {
    let rest = bytes.get(at..).unwrap_or_default();
    let end = memchr::memchr(0, rest).unwrap_or(rest.len());
    String::from_utf8_lossy(&rest[..end]).into_owned()
}
