// SPDX-License-Identifier: GPL-2.0-only
//! Builds calls, which must nest, from edges and events of one core; then the columns of the table.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nsight_decode::calls::fuzz;
use nsight_decode_fuzz::calls::{check, names, steps};

fuzz_target!(|bytes: &[u8]| {
    let rows = fuzz::rows(0, &names(), &steps(bytes));
    check(&rows);
    fuzz::encode(0, &names(), &rows);
});
