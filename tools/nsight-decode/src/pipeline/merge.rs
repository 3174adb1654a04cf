// SPDX-License-Identifier: GPL-2.0-only
//! Joins slices of all tracks, which arrive in the order of their begins, to one sequence of edges.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use super::options::Options;
use super::plan::Plan;
use super::side::{side_events, SideEvents};
use crate::code::Code as MachineCode;
use crate::edges::{Code, Edge, Event, Kind, Sink, ThreadName};
use crate::error::Result;
use crate::losses::{Ledger, Loss};
use crate::perfdata::Recording;
use crate::pt::item::{Item, What};
use crate::pt::stitch::{join, n_within, Joint};
use crate::pt::switches::{Task, UNKNOWN};
use crate::pt::walk::{Output, Slice};
use crate::spare::Spare;

/// What a run did and lost.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub edges: u64,
    pub insns: u64,
    pub bytes: u64,
    pub losses: Ledger,
}

/// Items of consecutive slices; they stay in the memory where they were made, which is used again afterwards.
struct Queue<'a> {
    parts: VecDeque<Vec<Item>>,
    /// The first item, in the first part.
    at: usize,
    spare: &'a Spare<Item>,
}

impl<'a> Queue<'a> {
    fn new(spare: &'a Spare<Item>) -> Self {
        Self { parts: VecDeque::new(), at: 0, spare }
    }

    fn front(&self) -> Option<&Item> {
        self.parts.front()?.get(self.at)
    }

    fn pop_front(&mut self) -> Option<Item> {
        let items = self.parts.front()?;
        let item = *items.get(self.at)?;
        self.at += 1;
        if self.at == items.len() {
            self.at = 0;
            self.parts.pop_front().into_iter().for_each(|items| self.spare.put(items));
        }
        Some(item)
    }

    fn append(&mut self, items: Vec<Item>) {
        if items.is_empty() {
            self.spare.put(items);
        } else {
            self.parts.push_back(items);
        }
    }

    fn push_back(&mut self, item: Item) {
        self.append(vec![item]);
    }
}

/// What was decoded and not passed on yet.
struct Track<'a> {
    items: Queue<'a>,
    /// What the last slice found after its end, and that end: the next slice decides which part of it counts.
    held: Option<(Output, usize)>,
    task: Task,
    /// The thread at the end of the last part, as far as the slice tells.
    thread: Option<Task>,
    side: SideEvents<'a>,
    /// A slice whose next part is still to come, with the time up to which it was decoded.
    open: Option<(usize, u64)>,
    /// End time of the last slice.
    last: u64,
    /// The core:bus ratio, because PSBs repeat it.
    ratio: u64,
    /// Time of the last item that was passed on.
    clock: u64,
}

impl Track<'_> {
    /// The time at which the first item is due.
    fn head(&self) -> Option<u64> {
        self.items.front().map(|item| item.time.max(self.clock))
    }
}

pub struct Merger<'a> {
    plan: &'a Plan,
    options: &'a Options,
    code: &'a MachineCode,
    sink: &'a mut dyn Sink,
    /// How many slices have begun.
    begun: usize,
    tracks: Vec<Track<'a>>,
    counts: Counts,
    /// The output's number for each interner number; 0 while it has none.
    numbers: Vec<u32>,
    n_numbers: u32,
}

impl<'a> Merger<'a> {
    pub fn new(
        recording: &'a Recording,
        code: &'a MachineCode,
        plan: &'a Plan,
        options: &'a Options,
        spare: &'a Spare<Item>,
        sink: &'a mut dyn Sink,
    ) -> Result<Self> {
        sink.symbols(&[("".into(), "".into())])?;
        let mut names: Vec<ThreadName> = code
            .tasks
            .names()
            .map(|(time, pid, tid, name)| ThreadName { time, pid, tid, name: name.to_owned() })
            .collect();
        names.sort_by(|a, b| (a.time, a.tid, &a.name).cmp(&(b.time, b.tid, &b.name)));
        sink.names(&names)?;
        let track = |side: SideEvents<'a>| Track {
            items: Queue::new(spare),
            held: None,
            task: UNKNOWN,
            thread: None,
            side,
            open: None,
            last: 0,
            ratio: 0,
            clock: 0,
        };
        let with_switches = sink.takes_switches();
        let tracks = side_events(recording, &plan.tracks, with_switches).into_iter().map(track).collect();
        let mut counts = Counts { bytes: plan.bytes(), ..Counts::default() };
        counts.losses.add(Loss::BytesBeforePsb, plan.bytes_before_psb);
        counts.losses.add(Loss::NoPsb, plan.never_entered as u64);
        Ok(Self { plan, options, code, sink, begun: 0, tracks, counts, numbers: vec![0], n_numbers: 1 })
    }

    /// The slice whose next part is wanted: the first part of the next slice, or more of one that has begun, whichever is
    /// earlier. None: there is no more.
    pub fn wants(&self) -> Option<usize> {
        let begun =
            self.tracks.iter().enumerate().filter_map(|(track, t)| t.open.map(|(n, time)| (time, track, n)));
        let next = self.plan.slices.get(self.begun).map(|p| (p.slice.time, p.track, self.begun));
        let (_, track, number) = begun.chain(next).min()?;
        // A slice is joined to what precedes it, which has to be complete.
        Some(self.tracks[track].open.map_or(number, |(open, _)| open))
    }

    /// Takes the next part of the slice that `wants` named.
    pub fn take(&mut self, number: usize, mut part: Output) -> Result<()> {
        self.counts.insns += part.n_insns;
        self.counts.losses.add(Loss::TimesLessExact, part.n_borrowed);
        self.counts.losses.add(Loss::TimesDamaged, part.n_damaged_times);
        let place = &self.plan.slices[number];
        let track = &mut self.tracks[place.track];
        match track.open.take() {
            Some(_) => part.task = track.thread,
            None => {
                self.begun += 1;
                self.begin(number, &mut part);
            }
        }
        let end = place.slice.end;
        let track = &mut self.tracks[place.track];
        track.thread = part.last_task();
        if part.goes_on {
            track.open = Some((number, part.until));
        } else {
            let tail = n_within(&part.items, end);
            let held = Output { items: part.items.split_off(tail), task: track.thread, ..Output::default() };
            let held = Output { until: part.until, lost_at_end: part.lost_at_end, ..held };
            track.held = Some((held, end));
        }
        release(track, part);
        self.drain()
    }

    /// Joins the first part of a slice to the slice before it.
    fn begin(&mut self, number: usize, part: &mut Output) {
        let place = &self.plan.slices[number];
        let track = &mut self.tracks[place.track];
        let mut seamless = false;
        if let Some((mut held, end)) = track.held.take() {
            if place.continues {
                match join(&mut held, end, place.slice.time, part) {
                    Joint::Seamless => {
                        seamless = true;
                        // The slice after this one may find it, too.
                        let mut shared = held.items.split_off(n_within(&held.items, place.slice.end));
                        if !shared.is_empty() {
                            shared.append(&mut part.items);
                            part.items = shared;
                        }
                    }
                    Joint::Anew => {}
                    Joint::Contradiction => {
                        self.counts.losses.add(Loss::SlicesContradict, 1);
                        part.items.insert(0, error_item(part, place.slice.time, place.slice.begin));
                    }
                }
            }
            let until = held.until;
            release(track, held);
            if !place.continues {
                track.last = track.last.max(until);
                track.items.push_back(hole(self.options.windows.is_all(), track.last, place.slice));
            }
        }
        if let Some(task) = part.task.filter(|_| !seamless) {
            push_task(track, task, place.slice.time, place.slice.begin);
        }
    }

    pub fn finish(mut self) -> Result<Counts> {
        for track in &mut self.tracks {
            if let Some((held, end)) = track.held.take() {
                let until = held.until;
                release(track, held);
                // What runs at the end of the trace lasts beyond its last edge.
                track.items.push_back(event_item(Code::Until, 0, until, end));
            }
        }
        self.drain()?;
        for index in 0..self.tracks.len() {
            while let Some(event) = self.tracks[index].side.pop_front() {
                self.event(event)?;
            }
        }
        Ok(self.counts)
    }

    /// The time and the track of the earliest item that may still come.
    fn bound(&self) -> (u64, usize) {
        let next = self.plan.slices.get(self.begun).map(|p| (p.slice.time, p.track));
        let of = |(index, track): (usize, &Track)| {
            let held = track.held.as_ref().and_then(|held| held.0.items.first()).map(|item| item.time);
            let open = track.open.map(|(_, until)| until);
            [held, open].map(|time| time.map(|time| (time, index)))
        };
        let begun = self.tracks.iter().enumerate().flat_map(of).flatten();
        begun.chain(next).min().unwrap_or((u64::MAX, usize::MAX))
    }

    /// Passes on everything before what may still come. A track's own items keep their order.
    fn drain(&mut self) -> Result<()> {
        let bound = self.bound();
        // Items with equal times are ordered by track, however the tracks were cut into slices.
        let heads = self.tracks.iter().enumerate().filter_map(|(index, track)| Some((track.head()?, index)));
        let mut heads: BinaryHeap<Reverse<(u64, usize)>> = heads.map(Reverse).collect();
        while let Some(Reverse(first)) = heads.pop().filter(|first| first.0 <= bound) {
            let index = first.1;
            let second = heads.peek().map_or((u64::MAX, usize::MAX), |second| second.0);
            // Until another track's turn comes.
            while let Some(time) = self.tracks[index].head() {
                if (time, index) > second.min(bound) {
                    heads.push(Reverse((time, index)));
                    break;
                }
                self.give(index)?;
            }
        }
        Ok(())
    }

    /// Passes on the first item of a track, after the side-band events that precede it.
    fn give(&mut self, index: usize) -> Result<()> {
        let track = &mut self.tracks[index];
        let Some(mut item) = track.items.pop_front() else { return Ok(()) };
        // A slice may begin with a TSC that is before the end of the previous slice.
        track.clock = track.clock.max(item.time);
        item.time = track.clock;
        let task = track.task;
        while self.tracks[index].side.front().is_some_and(|event| event.time <= item.time) {
            if let Some(event) = self.tracks[index].side.pop_front() {
                self.event(event)?;
            }
        }
        let cpu = self.plan.tracks[index].cpu(item.time);
        let kind = match item.what {
            What::Task => {
                self.tracks[index].task = Task { pid: item.from_sym as i32, tid: item.to_sym as i32 };
                return Ok(());
            }
            What::Event(code) => {
                let Task { pid, tid } = task;
                if code == Code::Cbr
                    && std::mem::replace(&mut self.tracks[index].ratio, item.from) == item.from
                {
                    return Ok(());
                }
                return self.event(Event { time: item.time, cpu, pid, tid, code, value: item.from });
            }
            What::Entry => Kind::TraceBegin,
            What::Edge(kind) => kind,
        };
        if !self.options.with_context && !self.options.windows.contain(known(cpu), item.time) {
            return Ok(());
        }
        let (from_sym, to_sym) = (self.number(item.from_sym)?, self.number(item.to_sym)?);
        self.counts.edges += 1;
        let Task { pid, tid } = task;
        let (time, from, to) = (item.time, item.from, item.to);
        self.sink.edge(&Edge { time, from, to, pid, tid, cpu, from_sym, to_sym, kind })
    }

    fn event(&mut self, event: Event) -> Result<()> {
        if !self.options.with_context && !self.options.windows.contain(known(event.cpu), event.time) {
            return Ok(());
        }
        self.counts.losses.event(&event);
        self.sink.event(&event)
    }

    /// The output's number of a symbol, in the order in which edges name symbols: threads intern them in any order.
    fn number(&mut self, id: u32) -> Result<u32> {
        if id == 0 {
            return Ok(0);
        }
        let index = id as usize;
        if index >= self.numbers.len() {
            self.numbers.resize(index + 1, 0);
        }
        if self.numbers[index] == 0 {
            let (symbol, dso): (Arc<str>, Arc<str>) = self.code.interner.get(id);
            self.sink.symbols(&[(symbol, dso)])?;
            self.numbers[index] = self.n_numbers;
            self.n_numbers += 1;
        }
        Ok(self.numbers[index])
    }
}

fn release(track: &mut Track, output: Output) {
    track.last = output.items.last().map_or(track.last, |i| i.time.max(track.last));
    track.items.append(output.items);
}

fn known(cpu: i32) -> Option<i32> {
    (cpu >= 0).then_some(cpu)
}

fn event_item(code: Code, value: u64, time: u64, offset: usize) -> Item {
    Item { time, from: value, to: 0, from_sym: 0, to_sym: 0, what: What::Event(code), offset }
}

/// The item between two slices when the second does not continue the first.
fn hole(all: bool, since: u64, next: Slice) -> Item {
    // perf's code for missing trace data
    let lost = (Code::DecodeError, 8);
    let skipped = (Code::Skipped, next.time.saturating_sub(since));
    let (code, value) = if all { lost } else { skipped };
    event_item(code, value, since, next.begin)
}

fn push_task(track: &mut Track, task: Task, time: u64, offset: usize) {
    let (from_sym, to_sym) = (task.pid as u32, task.tid as u32);
    track.items.push_back(Item { time, from: 0, to: 0, from_sym, to_sym, what: What::Task, offset });
}

fn error_item(output: &Output, time: u64, offset: usize) -> Item {
    let time = output.items.first().map_or(time, |i| i.time);
    // perf's code for a trace that does not match the code
    event_item(Code::DecodeError, 6, time, offset)
}
