// SPDX-License-Identifier: GPL-2.0-only
use super::*;

#[derive(Default)]
struct All {
    edges: Vec<Edge>,
    events: Vec<Event>,
    symbols: Vec<(Arc<str>, Arc<str>)>,
    names: Vec<ThreadName>,
}

impl Sink for All {
    fn edge(&mut self, edge: &Edge) -> Result<()> {
        self.edges.push(*edge);
        Ok(())
    }
    fn event(&mut self, event: &Event) -> Result<()> {
        self.events.push(*event);
        Ok(())
    }
    fn symbols(&mut self, new: &[(Arc<str>, Arc<str>)]) -> Result<()> {
        self.symbols.extend_from_slice(new);
        Ok(())
    }
    fn names(&mut self, names: &[ThreadName]) -> Result<()> {
        self.names.extend_from_slice(names);
        Ok(())
    }
}

fn edge(n: u64) -> Edge {
    Edge {
        time: n,
        from: n + 1,
        to: n + 2,
        pid: 3,
        tid: -1,
        cpu: 5,
        from_sym: 1,
        to_sym: 0,
        kind: Kind::Iret,
    }
}

fn sample(path: &Path) {
    let mut w = Writer::create(path).unwrap();
    w.symbols(&[("".into(), "".into()), ("read".into(), "libc".into())]).unwrap();
    w.names(&[ThreadName { time: 1, pid: 2, tid: 3, name: "sixteen-letters!x".into() }]).unwrap();
    for n in 0..3 {
        w.edge(&edge(n)).unwrap();
    }
    w.event(&Event { time: 9, cpu: 1, pid: 2, tid: 3, code: Code::Overflow, value: 7 }).unwrap();
    w.edge(&edge(4)).unwrap();
    w.finish().unwrap();
}

#[test]
fn what_is_written_is_read() {
    let directory = crate::scratch::Directory::new();
    let path = directory.path().join("e");
    sample(&path);
    let mut all = All::default();
    let reader = read(&path, &mut all).unwrap();
    assert_eq!((reader.cut, reader.unknown), (false, 0));
    assert_eq!(all.edges, [edge(0), edge(1), edge(2), edge(4)]);
    assert_eq!(all.events[0].code, Code::Overflow);
    assert_eq!(&*all.symbols[1].0, "read");
    assert_eq!(all.names[0].name, "sixteen-letters!");
}

#[test]
fn an_event_or_block_of_an_unknown_kind_is_skipped_and_counted() {
    let directory = crate::scratch::Directory::new();
    let path = directory.path().join("e");
    let mut w = Writer::create(&path).unwrap();
    for value in [7, 8] {
        w.event(&Event { time: 9, cpu: 1, pid: 2, tid: 3, code: Code::Ptwrite, value }).unwrap();
    }
    w.finish().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    // After the magic, the block's header, and times, cpus, pids and tids of two events: the code of the first.
    let code = 8 + 16 + 2 * (8 + 4 + 4 + 4);
    assert_eq!(bytes[code], Code::Ptwrite as u8);
    bytes[code] = 99;
    bytes.extend(99u32.to_le_bytes());
    bytes.extend([0; 12]);
    std::fs::write(&path, &bytes).unwrap();
    let mut all = All::default();
    assert_eq!(read(&path, &mut all).unwrap().unknown, 2);
    assert_eq!(all.events.iter().map(|e| e.value).collect::<Vec<_>>(), [8]);
}

#[test]
fn every_prefix_of_a_file_can_be_read() {
    let directory = crate::scratch::Directory::new();
    let path = directory.path().join("e");
    sample(&path);
    let whole = std::fs::read(&path).unwrap();
    assert_eq!(whole.len() % 8, 0);
    for end in 8..whole.len() {
        std::fs::write(&path, &whole[..end]).unwrap();
        let mut all = All::default();
        read(&path, &mut all).unwrap();
        assert!(all.edges.len() <= 4);
    }
}

#[test]
fn damage_is_an_error_and_no_panic() {
    let directory = crate::scratch::Directory::new();
    let path = directory.path().join("e");
    sample(&path);
    let whole = std::fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0xff;
        std::fs::write(&path, &damaged).unwrap();
        let _ = read(&path, &mut All::default());
    }
}
