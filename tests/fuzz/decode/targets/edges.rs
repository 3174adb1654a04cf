// SPDX-License-Identifier: GPL-2.0-only
//! An edge file, from which `nsight-decode build` makes the tables of calls.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use nsight_decode::calls;
use nsight_decode::thread_pool::ThreadPool;
use nsight_decode_fuzz::run::tables;
use nsight_decode_fuzz::scratch::Memory;

fuzz_target!(|bytes: &[u8]| {
    let file = Memory::new(bytes);
    if let Err(error) = calls::build(&file.path(), &tables(), Arc::new(ThreadPool::new(1))) {
        assert_ne!(error.code, nsight_decode::error::exit::BUG, "{error}");
    }
});
