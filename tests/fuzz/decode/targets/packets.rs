// SPDX-License-Identifier: GPL-2.0-only
//! Intel PT of a core (or thread) that ran the fixed program.
//!
//! Two bytes select how it was recorded; the others are packets.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use nsight_decode::code::Code;
use nsight_decode::error::Result;
use nsight_decode::perfdata::Recording;
use nsight_decode_fuzz::perf_data::{self, Options};
use nsight_decode_fuzz::run::{self, Checked};
use nsight_decode_fuzz::scratch::Memory;

/// Family 6: none with errata, Broadwell, Skylake, Goldmont.
const MODELS: [u8; 4] = [200, 0x3d, 0x4e, 0x5c];
const SLICES: [usize; 4] = [256, 1024, 4096, 256 << 10];
const PIECES: [usize; 4] = [usize::MAX, 4096, 100, 24];

fn choose(first: u8, second: u8) -> (Options, usize, usize) {
    let bit = |n: u32| first >> n & 1 == 1;
    let of = |n: u32| usize::from(second >> n & 3);
    let options = Options {
        ret_compression: bit(0),
        cyc: bit(1),
        mtc: bit(2),
        per_thread: bit(3),
        snapshot: bit(4),
        model: MODELS[of(0)],
    };
    (options, SLICES[of(2)], PIECES[of(4)])
}

/// The same code for all inputs: the trace does not change it.
fn code(recording: &Recording) -> &'static Code {
    static CODE: OnceLock<Code> = OnceLock::new();
    CODE.get_or_init(|| run::code_of(recording).expect("the fixed program"))
}

fn read(bytes: &[u8]) -> Result<()> {
    let [first, second, packets @ ..] = bytes else { return Ok(()) };
    let (options, slice, piece) = choose(*first, *second);
    let pieces: Vec<&[u8]> = packets.chunks(piece).collect();
    let file = Memory::new(&perf_data::of(&pieces, options));
    let recording = Recording::open(&file.path())?;
    let mut sink = Checked::new(first & 0x80 != 0)?;
    run::decode(&recording, code(&recording), slice, &mut sink)?;
    sink.finish()
}

fuzz_target!(|bytes: &[u8]| {
    if let Err(error) = read(bytes) {
        assert_ne!(error.code, nsight_decode::error::exit::BUG, "{error}");
    }
});
