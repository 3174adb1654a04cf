// SPDX-License-Identifier: GPL-2.0-only
//! Return addresses for RET compression: tests that libipt counts them as the processor does.
//!
//! Intel's manual (volume 3, "Indirect Transfer Compression for Returns"): a near CALL pushes the address after it, and
//! a near RET pops one, whether it is compressed (a TNT bit) or not (a TIP). libipt/patches implements this. Without
//! the patch, libipt's stack has one entry too many after each retpoline (CALL, another address written over the return
//! address, RET) and after each switch of stacks. Then, every return further up the stack goes to the wrong address.

use std::ffi::{c_void, CString};
use std::os::raw::c_int;
use std::os::unix::ffi::OsStrExt;

use crate::libipt::{self, error, status, Status};
use crate::packets::index::PSB;
use crate::scratch::Directory;

/// An address that occurs nowhere else.
const CODE: u64 = 0x5a3c_9e17_d000;
const SIZE: usize = 0x80;

type Pieces = &'static [(usize, &'static [u8])];

/// A call; within it, a retpoline to a function that returns; then, the return from the call.
const RETPOLINE: Pieces = &[
    (0, &[0xe8, 0x0b, 0, 0, 0]),    // call CODE + 0x10
    (0x10, &[0xe8, 0x1b, 0, 0, 0]), // call CODE + 0x30, the thunk
    (0x15, &[0xc3]),
    (0x30, &[0xe8, 0x0b, 0, 0, 0]), // call CODE + 0x40
    (0x40, &[0xc3]),                // to CODE + 0x50, which was written over CODE + 0x35
    (0x50, &[0xc3]),
];

/// A function that calls itself if a branch is not taken, and returns.
const RECURSION: Pieces = &[
    (0, &[0x74, 5]),                            // je CODE + 7
    (2, &[0xe8, 0xf9, 0xff, 0xff, 0xff, 0xc3]), // call CODE; ret
];

/// Compressed returns.
const ONE: &[u8] = &[0x06];
const TWO: &[u8] = &[0x0e];

fn bytes_of(pieces: Pieces) -> [u8; SIZE] {
    let mut code = [0x90; SIZE];
    for (at, bytes) in pieces {
        code[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    code
}

/// Memory that holds `context` at `CODE`.
extern "C" fn read_code(to: *mut u8, size: usize, _: *const c_void, ip: u64, context: *mut c_void) -> c_int {
    // SAFETY: `each` passes it.
    let code = unsafe { *context.cast::<[u8; SIZE]>() };
    let Some(rest) = ip.checked_sub(CODE).and_then(|at| code.get(at as usize..)) else {
        return -error::NOMAP;
    };
    let n = size.min(rest.len());
    // SAFETY: libipt's buffer has `size` bytes.
    unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), to, n) };
    n as c_int
}

/// A packet with a whole address.
fn packet(kind: u8, address: u64) -> Vec<u8> {
    let mut bytes = vec![kind | 6 << 5];
    bytes.extend(address.to_le_bytes());
    bytes
}

const TIP: u8 = 0x0d;
const ENABLE: u8 = 0x11;

/// A trace that runs from `CODE` according to `packets`.
fn trace(packets: &[&[u8]]) -> Vec<u8> {
    let mut trace = PSB.to_vec();
    trace.extend([0x99, 0x01]); // MODE.Exec: 64 bits
    trace.extend(packet(0x1d, CODE)); // FUP
    trace.extend([2, 0x23]); // PSBEND
    packets.iter().for_each(|bytes| trace.extend(*bytes));
    trace
}

/// The begins of libipt's blocks, and its last status.
///
/// # Safety
/// `image` is an image of libipt.
unsafe fn decoded(image: *mut libipt::Image, trace: &[u8]) -> (Vec<u64>, Status) {
    let mut config = libipt::Config::new(trace.as_ptr_range());
    config.flags[0] = libipt::END_ON_CALL;
    let decoder = libipt::pt_blk_alloc_decoder(&config);
    assert!(!decoder.is_null());
    libipt::pt_blk_set_image(decoder, image);
    let mut block: libipt::Block = std::mem::zeroed();
    let mut event: libipt::Event = std::mem::zeroed();
    let mut status = libipt::pt_blk_sync_set(decoder, 0);
    let mut begins = Vec::new();
    while status >= 0 {
        while status >= 0 && status & status::EVENT_PENDING != 0 {
            status = libipt::pt_blk_event(decoder, &mut event, std::mem::size_of::<libipt::Event>());
        }
        if status >= 0 {
            status = libipt::pt_blk_next(decoder, &mut block, std::mem::size_of::<libipt::Block>());
            begins.extend((block.ninsn > 0).then(|| block.ip - CODE));
        }
    }
    libipt::pt_blk_free_decoder(decoder);
    (begins, status)
}

/// Checks the result three times: libipt reads instruction by instruction, with an empty block cache, with a full one.
fn each(pieces: Pieces, packets: &[&[u8]], check: impl Fn(Vec<u64>, Status)) {
    let (mut code, trace) = (bytes_of(pieces), trace(packets));
    let directory = Directory::new();
    let path = directory.path().join("code");
    std::fs::write(&path, code).unwrap();
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: what is freed below lives until then.
    unsafe {
        let image = libipt::pt_image_alloc(std::ptr::null());
        libipt::pt_image_set_callback(image, Some(read_code), (&raw mut code).cast());
        let run = || {
            let (begins, status) = decoded(image, &trace);
            check(begins, status);
        };
        run();
        let cache = libipt::pt_iscache_alloc(std::ptr::null());
        let section = libipt::pt_iscache_add_file(cache, path.as_ptr(), 0, SIZE as u64, CODE);
        assert_eq!(libipt::pt_image_add_cached(image, cache, section, std::ptr::null()), 0);
        run();
        run();
        libipt::pt_image_free(image);
        libipt::pt_iscache_free(cache);
    }
}

/// Checks that the first blocks begin at these places.
fn begin_at(pieces: Pieces, packets: &[&[u8]], expected: &[u64]) {
    each(pieces, packets, |found, status| assert_eq!(found[..expected.len()], *expected, "{status}"));
}

#[test]
fn a_return_to_another_address_takes_its_call_from_the_stack() {
    // one return that is not compressed, then two compressed ones
    begin_at(RETPOLINE, &[&packet(TIP, CODE + 0x50), TWO], &[0, 0x10, 0x30, 0x40, 0x50, 0x15, 5]);
}

#[test]
fn a_return_out_of_what_is_traced_takes_its_call_from_the_stack() {
    let packets: [&[u8]; 3] = [&[0x01], &packet(ENABLE, CODE + 0x50), TWO];
    begin_at(RETPOLINE, &packets, &[0, 0x10, 0x30, 0x40, 0x50, 0x15, 5]);
}

#[test]
fn an_empty_stack_stays_empty() {
    // The call of the first return was not seen.
    let code: Pieces = &[(0, &[0xc3]), (0x10, &[0xe8, 0x1b, 0, 0, 0]), (0x30, &[0xc3])];
    begin_at(code, &[&packet(TIP, CODE + 0x10), ONE], &[0, 0x10, 0x30, 0x15]);
    each(code, &[&packet(TIP, CODE), ONE], |found, status| {
        assert_eq!((&found[..], status), (&[0, 0][..], -error::RETSTACK_EMPTY));
    });
}

#[test]
fn of_the_youngest_64_calls_each_return_takes_one() {
    // 66 calls, a branch to the return, a return that is not compressed, and 66 that are.
    let (calls, taken, back) = ([0x80; 11], [0x06], packet(TIP, CODE + 7));
    each(RECURSION, &[&calls, &taken, &back, &[0xfe; 11]], |found, status| {
        assert_eq!(status, -error::RETSTACK_EMPTY);
        // The last one finds nothing: 63 were left.
        assert_eq!(found.iter().filter(|&&begin| begin == 7).count(), 2 + 63);
    });
}
