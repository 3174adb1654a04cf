// SPDX-License-Identifier: GPL-2.0-only
//! Every packet, read again by libipt's and by perf's packet decoder.
//!
//! Needs `make -C tests/machinery/pt_emulation/guest` (pt-libipt) and a perf with Intel PT on PATH.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pt_encoder::{encode, Buffer, Options, Packet};
use pt_events::{Event, Kind};

/// A packet as both decoders should report it: offset, name, numbers of its payload.
type Told = (usize, &'static str, Vec<u64>);

/// Numbers that look random but are the same in each run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 16) % below
    }
}

fn address(numbers: &mut Numbers) -> u64 {
    match numbers.next(4) {
        0 => 0xffff_ffff_8100_0000 + numbers.next(1 << 20),
        1 => 0x7f12_3456_0000 + numbers.next(1 << 16),
        2 => 0x40_0000 + numbers.next(1 << 22),
        _ => 0xffff_ffff_8100_0000 + numbers.next(1 << 12),
    }
}

fn any(numbers: &mut Numbers) -> Packet {
    let n = 1 + numbers.next(47) as u32;
    match numbers.next(16) {
        0 => Packet::Tnt { bits: numbers.next(1 << n), n },
        1 => Packet::Tnt { bits: numbers.next(1 << n.min(6)), n: n.min(6) },
        2 => Packet::Tip(address(numbers)),
        3 => Packet::TipPge(address(numbers)),
        4 => Packet::TipPgd(Some(address(numbers))),
        5 => Packet::TipPgd(None),
        6 => Packet::Fup(address(numbers)),
        7 => Packet::Pip { cr3: numbers.next(1 << 40) << 5 },
        8 => Packet::Tsc(numbers.next(1 << 48)),
        9 => Packet::Tma { ctc: numbers.next(1 << 16) as u16, fast_counter: numbers.next(512) as u16 },
        10 => Packet::Mtc(numbers.next(256) as u8),
        11 | 12 => {
            let magnitude = 1 << (1 + numbers.next(40));
            Packet::Cyc(1 + numbers.next(magnitude))
        }
        13 => Packet::Cbr(1 + numbers.next(50) as u8),
        14 => Packet::Pwre { c_state: numbers.next(8) as u8 },
        _ => {
            [Packet::Ovf, Packet::ModeExec64, Packet::TraceStop, Packet::Exstop, Packet::Pwrx { c_state: 1 }]
                [numbers.next(5) as usize]
        }
    }
}

fn payload(packet: &Packet) -> Vec<u64> {
    match *packet {
        Packet::Tnt { bits, n } => vec![n.into(), bits],
        Packet::Tsc(value) | Packet::Cyc(value) => vec![value],
        Packet::Mtc(ctc) => vec![ctc.into()],
        Packet::Tma { ctc, fast_counter } => vec![ctc.into(), fast_counter.into()],
        Packet::Cbr(ratio) => vec![ratio.into()],
        Packet::Pip { cr3 } => vec![cr3],
        _ => vec![],
    }
}

/// A PSB+, then 2000 packets of all kinds, with an occasional PSB+.
fn stream() -> (Vec<u8>, Vec<Told>) {
    let mut numbers = Numbers(1);
    let mut buffer = Buffer::default();
    let mut told = Vec::new();
    for n in 0..2000 {
        let packets = if n % 100 == 0 { vec![Packet::Psb, Packet::Psbend] } else { vec![any(&mut numbers)] };
        for packet in packets {
            told.push((buffer.bytes.len(), packet.name(), payload(&packet)));
            buffer.push(packet);
        }
    }
    (buffer.bytes, told)
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap_or_else(|_| panic!("{text:?} is no number"))
}

fn assert_same(decoded: &[(usize, String, Vec<u64>)], told: &[Told]) {
    for (decoded, told) in decoded.iter().zip(told) {
        assert_eq!((decoded.0, decoded.1.as_str(), &decoded.2), (told.0, told.1, &told.2));
    }
    assert_eq!(decoded.len(), told.len());
}

fn build() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../../build/pt_emulation")
}

/// The output of libipt's packet decoder: offset, name, payload.
fn libipt(bytes: &[u8]) -> Vec<(usize, String, Vec<u64>)> {
    let directory = tempfile::tempdir().unwrap();
    let aux = directory.path().join("aux");
    fs::write(&aux, bytes).unwrap();
    let out = Command::new(build().join("pt-libipt")).arg("--packets").arg(&aux).output().expect("pt-libipt");
    let text = String::from_utf8(out.stdout).unwrap();
    text.lines()
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let decimal_first = words[1] == "TNT";
            let number = |(n, word): (usize, &&str)| match n {
                0 if decimal_first => word.parse().unwrap(),
                _ => hex(word),
            };
            (hex(words[0]) as usize, words[1].to_owned(), words[2..].iter().enumerate().map(number).collect())
        })
        .collect()
}

#[test]
fn libipt_reads_every_packet_as_it_was_meant() {
    let (bytes, told) = stream();
    assert_same(&libipt(&bytes), &told);
}

#[test]
fn a_tsc_and_the_cycles_before_it_tell_the_same_time() {
    // perf takes the later of both times: a difference between them would stay in its clock for good.
    let ret = |n: u64| Event { tsc: 101 + n, kind: Kind::Ret { from: 0x2000, to: 0x10_0000 * (n + 1) } };
    let begin = Event { tsc: 100, kind: Kind::Enable { ip: 0x1000, cr3: 0x5000 } };
    let events: Vec<_> = std::iter::once(begin).chain((0..200).map(ret)).collect();
    let encoded = encode(0, &events, &Options { psb_bytes: Some(64), ..Options::default() });
    let mut time = 0;
    let mut stamps = 0;
    for (_, name, payload) in libipt(&encoded.bytes) {
        match name.as_str() {
            "CYC" => time += payload[0],
            "TSC" => {
                assert_eq!(payload[0], time);
                stamps += 1;
            }
            _ => {}
        }
    }
    assert!(stamps > 5);
    assert_eq!(time, 300);
}

/// `.  0000003b:  2d 79 b8        TIP 0xb879` -> offset, name, payload
fn perf_line(line: &str) -> Option<(usize, String, Vec<u64>)> {
    let rest = line.strip_prefix(".  ")?;
    let (offset, rest) = rest.split_once(':')?;
    let words: Vec<&str> =
        rest.split_whitespace().skip_while(|w| w.len() == 2 && u8::from_str_radix(w, 16).is_ok()).collect();
    let name = words.first()?.replace("TraceSTOP", "TraceStop");
    let numbers = match name.as_str() {
        "TNT" => {
            let bits = words[1].bytes().fold(0, |bits, b| bits << 1 | u64::from(b == b'T'));
            vec![words[1].len() as u64, bits]
        }
        "TSC" | "CYC" | "MTC" | "CBR" => vec![hex(words[1])],
        "TMA" => vec![hex(words[2]), hex(words[4])],
        "PIP" => vec![hex(words[1]) << 5], // perf shows the payload: CR3 from bit 5 on
        _ => vec![],
    };
    Some((hex(offset) as usize, name, numbers))
}

#[test]
fn perf_reads_every_packet_as_it_was_meant() {
    let (bytes, told) = stream();
    let directory = tempfile::tempdir().unwrap();
    let size = bytes.len();
    fs::write(directory.path().join("cpu0.aux"), bytes).unwrap();
    let options = r#"{"tsc_ctc_n":40,"tsc_ctc_d":1,"snapshot":null,"user_only":false,"kernel_only":false}"#;
    let chunk = format!(r#"{{"offset":0,"size":{size},"tsc":1000,"flags":0}}"#);
    let cpus = format!(r#"[{{"cpu":0,"file":"cpu0.aux","chunks":[{chunk}]}}]"#);
    let json = format!(r#"{{"version":1,"config":9219,"options":{options},"cpus":{cpus}}}"#);
    fs::write(directory.path().join("aux.json"), json).unwrap();
    let aux = pt_merger::Aux::load(directory.path()).unwrap();
    let merged =
        pt_merger::merge(pt_merger::synthetic::side_band(1, &[]), &aux, pt_merger::Buffers::Cpus(&aux), None)
            .unwrap();
    let data = directory.path().join("perf.data");
    fs::write(&data, merged.file.write(&merged.index)).unwrap();
    let out = Command::new("perf").args(["script", "-D", "-i"]).arg(&data).output().expect("perf");
    let text = String::from_utf8_lossy(&out.stdout);
    let aux = text.lines().skip_while(|line| !line.contains("Intel Processor Trace data")).skip(1);
    let aux = aux.take_while(|line| line.starts_with(".  "));
    let mut decoded: Vec<_> = aux.filter_map(perf_line).collect();
    while decoded.last().is_some_and(|packet| packet.1 == "PAD") {
        decoded.pop(); // AUX data are padded to 8 bytes
    }
    assert_same(&decoded, &told);
}
