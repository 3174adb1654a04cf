// SPDX-License-Identifier: GPL-2.0-only
//! Return addresses for RET compression, as the processor counts them.
//!
//! Intel's manual (volume 3, "Indirect Transfer Compression for Returns"): a near CALL pushes the
//! address behind it, and a near RET pops one, whether it is compressed (a TNT bit) or not (a TIP).
//! libipt pops for compressed ones alone. Where an uncompressed RET has its CALL on the stack, as in each
//! retpoline (CALL, another address written over the return address, RET) and at each switch of
//! stacks, libipt's stack is one entry too high from there on, and every return up the stack goes
//! astray. So the entry is dropped here.
//!
//! libipt has no function for that, and its decoder is opaque. Where the stack lies in it is measured
//! once: by what a decoder of known code and trace writes there, and held against what it should do. With a
//! libipt of another layout nothing is touched, and the loss is told.

use std::ffi::c_void;
use std::os::raw::c_int;
use std::sync::OnceLock;

use super::ffi::{self, Status};
use super::index::PSB;

/// `pt_retstack_size`, and one more, since top == bottom is empty.
const ENTRIES: usize = 65;

/// Where in a block decoder the stack's entries begin; `top` and `bottom`, a byte each, follow them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReturnStack {
    offset: usize,
}

/// What the libipt that runs does at a return that is not compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returns {
    /// Pops nothing.
    Kept(ReturnStack),
    /// Pops, as the manual says.
    Popped,
    /// Its stack is elsewhere.
    Unknown,
}

impl Returns {
    pub fn of_libipt() -> Self {
        static FOUND: OnceLock<Returns> = OnceLock::new();
        *FOUND.get_or_init(measure)
    }

    /// What is to be repaired.
    pub fn kept(self) -> Option<ReturnStack> {
        match self {
            Self::Kept(stack) => Some(stack),
            _ => None,
        }
    }
}

impl ReturnStack {
    fn marks(self, decoder: *mut ffi::BlockDecoder) -> *mut u8 {
        decoder.cast::<u8>().wrapping_add(self.offset + ENTRIES * 8)
    }

    /// Index of the next entry.
    pub fn top(self, decoder: *mut ffi::BlockDecoder) -> u8 {
        // SAFETY: within the decoder, as `measure` found.
        unsafe { *self.marks(decoder) }
    }

    /// Drops the last entry, if there is one.
    pub fn pop(self, decoder: *mut ffi::BlockDecoder) {
        let marks = self.marks(decoder);
        // SAFETY: as above; nobody else uses the decoder.
        unsafe {
            let (top, bottom) = (*marks, *marks.add(1));
            if top != bottom {
                *marks = top.checked_sub(1).unwrap_or(ENTRIES as u8 - 1);
            }
        }
    }
}

/// `pt_blk_next`, with the stack as the manual has it.
///
/// # Safety
/// `decoder` is one of libipt's.
pub unsafe fn next(
    decoder: *mut ffi::BlockDecoder,
    returns: Option<ReturnStack>,
    block: &mut ffi::Block,
) -> Status {
    let size = std::mem::size_of::<ffi::Block>();
    let Some(returns) = returns else { return ffi::pt_blk_next(decoder, block, size) };
    let top = returns.top(decoder);
    let status = ffi::pt_blk_next(decoder, block, size);
    let returned = status >= 0 && block.ninsn > 0 && block.iclass == ffi::iclass::RETURN;
    // A compressed one has been popped.
    if returned && returns.top(decoder) == top {
        returns.pop(decoder);
    }
    status
}

/// An address that is found nowhere else.
const CODE: u64 = 0x5a3c_9e17_d000;
const BEHIND: [u64; 2] = [CODE + 5, CODE + 0x15];

/// Two calls, and two returns from the second one: one leads behind it, one anywhere.
const KNOWN: &[(usize, &[u8])] = &[
    (0, &[0xe8, 0x0b, 0, 0, 0]),    // call CODE + 0x10
    (0x10, &[0xe8, 0x2b, 0, 0, 0]), // call CODE + 0x40
    (0x15, &[0xc3]),
    (0x40, &[0xc3]),
];

fn measure() -> Returns {
    // The first return is compressed (TNT), the second one is not (TIP).
    with_decoder(KNOWN, &[&[6], &packet(0x0d, CODE + 0x50)], |decoder| {
        // SAFETY: a decoder at its begin.
        unsafe { watch(decoder) }.unwrap_or(Returns::Unknown)
    })
    .unwrap_or(Returns::Unknown)
}

type Pieces = &'static [(usize, &'static [u8])];

/// Memory with some code at `CODE`.
extern "C" fn read_code(to: *mut u8, size: usize, _: *const c_void, ip: u64, pieces: *mut c_void) -> c_int {
    // SAFETY: `with_decoder` gives it.
    let pieces = unsafe { *pieces.cast::<Pieces>() };
    let mut code = [0x90; 0x80];
    for (at, bytes) in pieces {
        code[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    let Some(rest) = ip.checked_sub(CODE).and_then(|at| code.get(at as usize..)) else {
        return -ffi::error::NOMAP;
    };
    let n = size.min(rest.len());
    // SAFETY: libipt gives `size` bytes.
    unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), to, n) };
    n as c_int
}

/// A packet with a whole address.
fn packet(kind: u8, address: u64) -> Vec<u8> {
    let mut bytes = vec![kind | 6 << 5];
    bytes.extend(address.to_le_bytes());
    bytes
}

/// A decoder of code at `CODE` that runs from there, as `packets` tell.
fn with_decoder<T>(
    mut code: Pieces,
    packets: &[&[u8]],
    then: impl FnOnce(*mut ffi::BlockDecoder) -> T,
) -> Option<T> {
    let mut trace = PSB.to_vec();
    trace.extend([0x99, 0x01]); // MODE.Exec: 64 bits
    trace.extend(packet(0x1d, CODE)); // FUP
    trace.extend([2, 0x23]); // PSBEND
    packets.iter().for_each(|bytes| trace.extend(*bytes));
    let mut config = ffi::Config::new(&trace);
    config.flags[0] = ffi::END_ON_CALL;
    // SAFETY: all are freed below and live until then; libipt frees NULL as free() does.
    unsafe {
        let image = ffi::pt_image_alloc(std::ptr::null());
        let decoder = ffi::pt_blk_alloc_decoder(&config);
        let made = !image.is_null() && !decoder.is_null();
        let result = made.then(|| {
            ffi::pt_image_set_callback(image, Some(read_code), (&raw mut code).cast());
            ffi::pt_blk_set_image(decoder, image);
            then(decoder)
        });
        ffi::pt_blk_free_decoder(decoder);
        ffi::pt_image_free(image);
        result
    }
}

/// Where `decoder` keeps the return addresses of the known code.
unsafe fn watch(decoder: *mut ffi::BlockDecoder) -> Option<Returns> {
    let mut block: ffi::Block = std::mem::zeroed();
    let mut event: ffi::Event = std::mem::zeroed();
    let mut status = ffi::pt_blk_sync_set(decoder, 0);
    let mut step = || {
        while status >= 0 && status & ffi::status::EVENT_PENDING != 0 {
            status = ffi::pt_blk_event(decoder, &mut event, std::mem::size_of::<ffi::Event>());
        }
        if status >= 0 {
            status = ffi::pt_blk_next(decoder, &mut block, std::mem::size_of::<ffi::Block>());
        }
        (status >= 0).then_some(block.end_ip)
    };
    let size = libc::malloc_usable_size(decoder.cast());
    let bytes = || std::slice::from_raw_parts(decoder.cast::<u8>(), size);
    (step()? == CODE && step()? == CODE + 0x10).then_some(())?;
    let entries: Vec<u8> = BEHIND.iter().flat_map(|address| address.to_le_bytes()).collect();
    // Memory that an earlier decoder had may hold its entries still; only in this one's does the mark move.
    let mut places: Vec<usize> = memchr::memmem::find_iter(bytes(), &entries).collect();
    let are = |offset: usize, top: u8| {
        let marks = offset + ENTRIES * 8;
        bytes().get(marks..marks + 2) == Some(&[top, 0])
    };
    places.retain(|&offset| are(offset, 2));
    (step()? == CODE + 0x40).then_some(())?;
    places.retain(|&offset| are(offset, 1));
    let [offset] = places[..] else { return None };
    (step()? == BEHIND[1]).then_some(())?;
    match (are(offset, 1), are(offset, 0)) {
        (true, _) => Some(Returns::Kept(ReturnStack { offset })),
        (_, true) => Some(Returns::Popped),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stack_of_this_libipt_is_found() {
        assert_ne!(Returns::of_libipt(), Returns::Unknown);
        assert_eq!(Returns::of_libipt(), measure());
    }

    /// A call, within it a retpoline to a function that returns, and the return from the call.
    const RETPOLINE: Pieces = &[
        (0, &[0xe8, 0x0b, 0, 0, 0]),    // call CODE + 0x10
        (0x10, &[0xe8, 0x1b, 0, 0, 0]), // call CODE + 0x30, the thunk
        (0x15, &[0xc3]),
        (0x30, &[0xe8, 0x0b, 0, 0, 0]), // call CODE + 0x40
        (0x40, &[0xc3]),                // to CODE + 0x50, which was written over CODE + 0x35
        (0x50, &[0xc3]),
    ];

    fn blocks(returns: Option<ReturnStack>) -> Vec<u64> {
        // one return to an address of its own, then two compressed ones
        let packets: [&[u8]; 2] = [&packet(0x0d, CODE + 0x50), &[0x0e]];
        with_decoder(RETPOLINE, &packets, |decoder| unsafe {
            let mut block: ffi::Block = std::mem::zeroed();
            let mut event: ffi::Event = std::mem::zeroed();
            let mut status = ffi::pt_blk_sync_set(decoder, 0);
            let mut begins = Vec::new();
            while status >= 0 {
                while status >= 0 && status & ffi::status::EVENT_PENDING != 0 {
                    status = ffi::pt_blk_event(decoder, &mut event, std::mem::size_of::<ffi::Event>());
                }
                block.ninsn = 0;
                if status >= 0 {
                    status = next(decoder, returns, &mut block);
                }
                if block.ninsn > 0 {
                    begins.push(block.ip - CODE);
                }
            }
            begins
        })
        .expect("a decoder")
    }

    #[test]
    fn a_return_to_another_address_takes_its_call_from_the_stack() {
        let found = blocks(Returns::of_libipt().kept());
        assert_eq!(found[..7], [0, 0x10, 0x30, 0x40, 0x50, 0x15, 5]);
        if let Returns::Kept(_) = Returns::of_libipt() {
            // What libipt makes of it: the first compressed return leads behind the retpoline's call.
            assert_eq!(blocks(None)[..6], [0, 0x10, 0x30, 0x40, 0x50, 0x35]);
        }
    }

    #[test]
    fn an_empty_stack_stays_empty_and_the_end_joins_the_begin() {
        let mut memory = [0_u8; ENTRIES * 8 + 2];
        let stack = ReturnStack { offset: 0 };
        let decoder = memory.as_mut_ptr().cast();
        stack.pop(decoder);
        assert_eq!(stack.top(decoder), 0);
        // 64 entries, the youngest in the last place
        memory[ENTRIES * 8 + 1] = 1;
        let decoder = memory.as_mut_ptr().cast();
        stack.pop(decoder);
        assert_eq!(stack.top(decoder), 64);
        stack.pop(decoder);
        assert_eq!(stack.top(decoder), 63);
    }
}
