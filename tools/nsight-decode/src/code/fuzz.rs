// SPDX-License-Identifier: GPL-2.0-only
//! What the fuzz targets in tests/fuzz/decode use of code: readers of files from a capture or from its machine.

use std::fs::File;
use std::path::Path;

use super::kernel::Kernel;
use super::object::Object;
use super::symbols::{Interner, Symbols};
use super::{bpf, kallsyms};
use crate::perfdata::Recording;

/// Looks up symbols by name, and symbols at some addresses.
fn look_up(symbols: &Symbols) {
    let interner = Interner::default();
    let named = symbols.address("__switch_to").unwrap_or(0);
    for address in [0, 1, named, 0x1000, 0x40_1000, 1 << 63, 0xffff_ffff_8100_0010, u64::MAX] {
        if let Some(found) = symbols.find(address, &interner) {
            assert!(found.start <= address && address < found.end, "{found:?}");
        }
    }
}

pub fn read_kallsyms(text: &[u8]) {
    // SAFETY: everything that refers to the text is dropped when this function ends.
    let text: &'static [u8] = unsafe { std::mem::transmute(text) };
    kallsyms::parse(text).iter().for_each(look_up);
}

pub fn read_bpf(feature: &[u8]) {
    bpf::programs(feature);
}

pub fn read_object(file: &File, path: &Path, root: &Path) {
    let Ok(object) = Object::new(file, path, "/object", root) else { return };
    [0, 0x1000, u64::MAX].map(|offset| object.address(offset));
    object.symbol_address("_stext");
    look_up(object.symbols());
    look_up(&object.into_symbols(1 << 21));
}

/// Reads a kcore, with the changes that the recording reports.
pub fn read_kcore(recording: &Recording, file: &File, path: &Path) {
    if let Ok(kernel) = Kernel::of_kcore(recording, file, path) {
        [0, 1, 1 << 40, u64::MAX].map(|time| kernel.pieces(time).count());
    }
}
