// SPDX-License-Identifier: GPL-2.0-only
//! Files with code and symbols. The first byte selects: a program, a kcore, kallsyms, compiled BPF programs.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use nsight_decode::code::fuzz;
use nsight_decode::perfdata::Recording;
use nsight_decode_fuzz::perf_data::{self, Options};
use nsight_decode_fuzz::scratch::{directory, Memory};

/// A recording of the fixed machine, in which the kernel changes.
fn recording() -> &'static Recording {
    static OPENED: OnceLock<(Recording, Memory)> = OnceLock::new();
    let options = Options {
        ret_compression: false,
        cyc: false,
        mtc: false,
        per_thread: false,
        snapshot: false,
        model: 200,
    };
    let (recording, _) = OPENED.get_or_init(|| {
        let file = Memory::new(&perf_data::of(&[b"no packets"], options));
        (Recording::open(&file.path()).expect("a recording"), file)
    });
    recording
}

fuzz_target!(|bytes: &[u8]| {
    let [kind, bytes @ ..] = bytes else { return };
    match kind & 3 {
        0 => {
            let file = Memory::new(bytes);
            fuzz::read_object(&file.0, &file.path(), directory());
        }
        1 => {
            let file = Memory::new(bytes);
            fuzz::read_kcore(recording(), &file.0, &file.path());
        }
        2 => fuzz::read_kallsyms(bytes),
        _ => fuzz::read_bpf(bytes),
    }
});
