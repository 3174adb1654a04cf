// SPDX-License-Identifier: GPL-2.0-only
//! A perf.data file: `nsight-decode info` and `calls` read it, with the code of another machine than the recorded one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nsight_decode::error::Result;
use nsight_decode::perfdata::Recording;
use nsight_decode_fuzz::run::{self, Checked};
use nsight_decode_fuzz::scratch::Memory;

const SLICE: usize = 1 << 12;

fn read(bytes: &[u8]) -> Result<()> {
    let file = Memory::new(bytes);
    let recording = Recording::open(&file.path())?;
    run::info(&recording);
    let code = run::code_of(&recording)?;
    let mut sink = Checked::new(true)?;
    run::decode(&recording, &code, SLICE, &mut sink)?;
    sink.finish()
}

fuzz_target!(|bytes: &[u8]| {
    if let Err(error) = read(bytes) {
        assert_ne!(error.code, nsight_decode::error::exit::BUG, "{error}");
    }
});
