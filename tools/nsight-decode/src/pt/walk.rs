// SPDX-License-Identifier: GPL-2.0-only
//! Decodes one slice of trace, block by block.

mod errors;
mod events;
mod parts;
mod pending;
mod process;
mod recent;
mod resume;
mod slice;
mod time;
mod transfers;

use std::rc::Rc;

use super::bounds::All;
use super::clock::Rates;
use super::decoder::{Decoder, Status};
use super::item::{Item, What};
use super::replay::{Need, Replay, Told};
use super::resync::{Place, Scanner};
use super::switches::{Cursor, Task};
use super::tail_calls::Instructions;
use super::trace::{Packets, Trace};
use crate::code::{Code as MachineCode, Found, Image, Images, KERNEL_BEGIN};
use crate::edges::{Code, Kind, COMPRESSED_RETURN};
use crate::error::Result;
use crate::insn::{Reach, Transfer};
use crate::libipt::{self, error, iclass, status, Block};
use crate::packets::index::{header, Run};
use crate::perfdata::Recording;
use crate::spare::Spare;
use errors::{is_compressed_return, perf_error, End, GUEST, NEVER_ENDING};
use pending::Pending;
use recent::Recent;

pub use slice::{Output, Slice, Track, ROOM};

/// This many instructions without a packet are an endless loop.
const MAX_IDLE: u32 = 1 << 17;
/// This many endless loops end a slice: each takes as much time as many packets. A fuzzer has less time.
const MAX_ENDLESS: u32 = if cfg!(fuzzing) { 2 } else { 8 };
/// A core that needs longer than this for an instruction waits, ns.
const STALL_NS: u64 = 1000;
/// But it does not wait if it executes more than one instruction per this many ns in that time.
const STALL_RATE: u64 = 20;

pub struct Walker<'a> {
    recording: &'a Recording,
    code: &'a MachineCode,
    images: Images<'a>,
    insns: Instructions,
    bare: bool,
    spare: &'a Spare<Item>,
}

impl<'a> Walker<'a> {
    pub fn new(
        recording: &'a Recording,
        code: &'a MachineCode,
        bare: bool,
        spare: &'a Spare<Item>,
    ) -> Result<Self> {
        let images = Images::new(code)?;
        let insns = Instructions::new(images.sections.clone());
        Ok(Self { recording, code, images, insns, bare, spare })
    }

    /// Decodes a slice. `emit` takes all parts but the last, which is returned.
    pub fn slice(
        &mut self,
        run: &Run,
        track: &Track,
        slice: &Slice,
        emit: &mut dyn FnMut(Output) -> Result<()>,
    ) -> Result<Output> {
        if self.images.sections.is_full() {
            *self = Self::new(self.recording, self.code, self.bare, self.spare)?;
        }
        let trace = Trace::new(run, slice.begin..slice.read_end, self.recording)?;
        let switches = track.cpu.and_then(|cpu| self.recording.side.switches.of(cpu));
        let cursor = Cursor::new(switches, slice.time, track.start, track.slack);
        let image = self.images.get(cursor.task.pid, slice.time)?;
        let mut decoder = Decoder::new(trace, self.recording)?;
        decoder.set_image(image.clone());
        let info = &self.recording.info;
        let rates = Rates {
            tsc_ctc: info.tsc_ctc,
            mtc_shift: self.recording.config.mtc,
            nominal: info.max_non_turbo,
        };
        let output = Output::new(slice, &cursor, self.spare);
        let psbs = slice.psbs(run);
        let bounds = All::new(psbs, slice.begin, slice.end);
        let mut state = State {
            walker: self,
            decoder,
            reference: run.reference(slice.begin),
            base: slice.begin,
            end: slice.end,
            psbs: psbs.iter().map(|psb| psb.offset).collect(),
            rates,
            scanner: Scanner::new(0, rates, bounds.clone()),
            replay: Replay::new(rates).within(bounds.clone()),
            bounds,
            contradicted: false,
            patched: 0,
            scanned: 0,
            cursor,
            image,
            process: 0,
            packet_time: slice.time,
            now: slice.time,
            overflowed: None,
            untold: None,
            offset: slice.begin,
            next: slice.begin,
            read: slice.begin,
            function: NOWHERE,
            pending: None,
            entry: true,
            in_guest: false,
            end_ip: 0,
            recent: Recent::default(),
            insns_since: 0,
            idle: 0,
            endless: 0,
            marks: Vec::new(),
            output,
            emit,
        };
        state.process = state.cursor.task.pid;
        state.run()?;
        state.walker.images.sections.check()?;
        state.output.items.append(&mut state.marks);
        state.output.until = state.now;
        state.output.n_damaged_times = state.replay.n_damaged;
        Ok(state.output)
    }
}

const NOWHERE: Found = Found { id: 0, start: 1, end: 0 };

struct State<'w, 'a> {
    walker: &'w mut Walker<'a>,
    decoder: Decoder<'w>,
    reference: u64,
    /// Offset of the first byte in the run.
    base: usize,
    end: usize,
    psbs: Vec<usize>,
    rates: Rates,
    /// Which TSCs can be right.
    bounds: All,
    /// Reads the packets after an error.
    scanner: Scanner,
    /// Reads the packets that libipt reports. `contradicted`: they no longer match.
    replay: Replay,
    contradicted: bool,
    /// Where the last PSB+ was written for a place that `scanner` found, and where the packets of that PSB+ end.
    patched: usize,
    scanned: usize,
    cursor: Cursor<'w>,
    image: Rc<Image>,
    /// The process whose code is in `image`.
    process: i32,
    /// Time of the last packet with a branch or event, and time of the code that runs: ns.
    packet_time: u64,
    now: u64,
    /// The time at which the processor lost packets, until tracing continues.
    overflowed: Option<u64>,
    /// Items from here on have no known time yet: the first one ended an overflow.
    untold: Option<usize>,
    /// Offset of the next packet that has more than time, offset of the next packet that reports a branch or event, and
    /// offset up to which libipt has read.
    offset: usize,
    next: usize,
    read: usize,
    /// The function that runs.
    function: Found,
    pending: Option<Pending>,
    /// Decoding begins at the next address.
    entry: bool,
    in_guest: bool,
    /// Last instruction of the last block.
    end_ip: u64,
    /// Blocks that ran since the time last changed.
    recent: Recent,
    insns_since: u64,
    idle: u32,
    /// Number of endless loops.
    endless: u32,
    /// Marks from packets that are later than the code that runs.
    marks: Vec<Item>,
    output: Output,
    emit: &'w mut dyn FnMut(Output) -> Result<()>,
}

impl State<'_, '_> {
    fn run(&mut self) -> Result<()> {
        let mut at = self.base;
        let mut place: Option<Place> = None;
        loop {
            self.pending = None;
            self.hand_on()?;
            self.function = NOWHERE;
            self.entry = true;
            (self.overflowed, self.untold) = (None, None);
            self.recent.clear();
            self.insns_since = 0;
            let status = self.decoder.sync_set(at - self.base);
            self.begin(at)?;
            self.resume();
            let psb = header(self.decoder.trace().at(at - self.base));
            self.show_image(psb.user)?;
            if let Some(place) = place {
                self.begin_at(place);
            }
            if at == self.base {
                self.output.first_branch = self.next;
            }
            let end = if status < 0 { End::of(status)? } else { self.decode(status)? };
            let End::Failed(code) = end else { return Ok(()) };
            if code == error::EOS {
                return Ok(());
            }
            // Nothing was decoded after the last place: libipt has read ahead, but no packet was used.
            let nowhere = place.is_some() && self.entry;
            if nowhere {
                self.offset = self.scanned;
            }
            let next = self.next_psb(at);
            if self.offset > self.end && next != Some(self.end) {
                // The error belongs to the next slice.
                return Ok(());
            }
            // One error is enough for an interval without code.
            if !nowhere && code != GUEST {
                // This comes from a loss only if decoding did not begin at a PSB: after a PSB, the processor compresses no
                // return to an earlier call.
                let after_loss = place.is_some() && is_compressed_return(code);
                let error = if after_loss { COMPRESSED_RETURN } else { perf_error(code) };
                self.push(What::Event(Code::DecodeError), error, self.end_ip);
            }
            self.endless += u32::from(code == NEVER_ENDING);
            if self.endless >= MAX_ENDLESS {
                self.output.lost_at_end = true;
                return Ok(());
            }
            place = self.next_address(code, next.unwrap_or(usize::MAX).min(self.end));
            if place.is_some() {
                at = self.patched;
                continue;
            }
            match next {
                Some(next) if next < self.end => at = next,
                next => {
                    self.output.lost_at_end = next == Some(self.end);
                    return Ok(());
                }
            }
        }
    }

    fn decode(&mut self, mut status: Status) -> Result<End> {
        let mut event: libipt::Event = unsafe { std::mem::zeroed() };
        let mut block: Block = unsafe { std::mem::zeroed() };
        loop {
            while status & status::EVENT_PENDING != 0 {
                let ip = self.decoder.ip();
                status = self.decoder.event(&mut event);
                if status < 0 {
                    return End::of(status);
                }
                self.is_moved();
                self.event(&event, ip)?;
                if self.in_guest {
                    return Ok(End::Failed(GUEST));
                }
                self.hand_on()?;
            }
            if self.offset > self.end && self.overlaps_enough() {
                return Ok(End::Done);
            }
            self.hand_on()?;
            let last = status & status::EOS != 0;
            if last && self.pending.is_none() && !self.entry {
                return Ok(End::Done);
            }
            status = self.decoder.next(&mut block);
            if block.ninsn > 0 && self.walker.bare {
                self.bare_block(&block)?;
            } else if block.ninsn > 0 {
                self.arrive(block.ip)?;
                if last {
                    // The code that ran after the last packet is unknown.
                    return Ok(End::Done);
                }
                self.block(&block, status)?;
            }
            if status < 0 {
                if -status == error::NOMAP {
                    self.walker.code.lacks(self.image.name(block.ip), block.ip);
                    if block.ninsn == 0 && self.pending.is_some() {
                        // The branch to this address is known.
                        self.arrive(block.ip)?;
                    }
                }
                return End::of(status);
            }
            self.idle += 1 + u32::from(block.ninsn);
            if self.idle > MAX_IDLE {
                self.idle = 0;
                return Ok(End::Failed(NEVER_ENDING));
            }
        }
    }

    /// Like `block`, but without edges: libipt only needs the code of the right process.
    fn bare_block(&mut self, block: &Block) -> Result<()> {
        self.output.n_insns += u64::from(block.ninsn);
        self.entry = false;
        if matches!(block.iclass, iclass::CALL | iclass::RETURN | iclass::JUMP | iclass::COND_JUMP) {
            return Ok(());
        }
        if matches!(self.walker.insns.end(block), Transfer::Sysret | Transfer::Iret) {
            self.catch_up()?;
            self.show_image(true)?;
        }
        Ok(())
    }

    fn block(&mut self, block: &Block, status: Status) -> Result<()> {
        self.output.n_insns += u64::from(block.ninsn);
        self.insns_since += u64::from(block.ninsn);
        self.end_ip = block.end_ip;
        self.recent.push(block);
        if !(self.function.start..self.function.end).contains(&block.end_ip) {
            self.leave_within(block)?;
        }
        self.is_moved();
        if status < 0 {
            // How execution left the block is unknown.
            return Ok(());
        }
        let transfer = match block.iclass {
            iclass::RETURN => Transfer::Return,
            iclass::COND_JUMP => Transfer::Jump(Some(0)),
            _ => self.walker.insns.end(block),
        };
        let need = match transfer {
            Transfer::None | Transfer::Call(Reach::Direct) => None,
            Transfer::Jump(Some(_)) => (block.iclass == iclass::COND_JUMP).then_some(Need::Taken),
            Transfer::Return if self.walker.recording.config.ret_compression => Some(Need::Return),
            _ => Some(Need::Target),
        };
        let told = need.map(|need| self.told_by(need));
        if told == Some(Told::Packet) {
            self.advance(self.packet_time)?;
        }
        let kind = match transfer {
            Transfer::None | Transfer::Jump(_) | Transfer::FarJump => None,
            Transfer::Call(_) | Transfer::FarCall => Some(Kind::Call),
            Transfer::Return | Transfer::FarReturn => Some(Kind::Return),
            Transfer::Syscall => Some(Kind::Syscall),
            Transfer::Sysret => Some(Kind::Sysret),
            Transfer::Iret => Some(Kind::Iret),
            Transfer::Interrupt => Some(Kind::SoftInterrupt),
        };
        let (from, executed) = (block.end_ip, told != Some(Told::Nothing));
        self.pending = Some(Pending { from, kind, executed, time: self.now, offset: self.next });
        if kind == Some(Kind::Sysret) || kind == Some(Kind::Iret) && self.leads_to_user() {
            self.show_image(true)?;
        }
        Ok(())
    }

    /// Whether an iret may lead to user code: not during a switch. An iret to user code ends something that no switch
    /// can lie within; for an iret to kernel code, the image does not matter.
    fn leads_to_user(&self) -> bool {
        !self.cursor.is_amid(self.now)
    }

    fn push(&mut self, what: What, from: u64, to: u64) {
        self.push_edge(what, from, to, 0, 0);
    }

    fn push_edge(&mut self, what: What, from: u64, to: u64, from_sym: u32, to_sym: u32) {
        let (time, offset) = (self.now, self.next);
        self.output.items.push(Item { time, from, to, from_sym, to_sym, what, offset });
    }
}
