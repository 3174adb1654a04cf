// SPDX-License-Identifier: GPL-2.0-only
//! Which process's code runs, and which thread runs it.

use std::rc::Rc;

use super::{Item, Result, State, Task, What};

impl State<'_, '_> {
    /// Gives the decoder the current code of the current process. `user`: user code follows.
    pub(super) fn show_image(&mut self, user: bool) -> Result<()> {
        if user && self.cursor.user(self.now) {
            self.task();
        }
        let pid = self.cursor.task.pid;
        if pid != self.process || self.now >= self.image.until {
            let image = self.walker.images.get(pid, self.now)?;
            self.process = pid;
            if !Rc::ptr_eq(&image, &self.image) {
                self.decoder.set_image(image.clone());
                self.image = image;
            }
        }
        Ok(())
    }

    /// Decoding resumes after a time without trace.
    pub(super) fn resume(&mut self) {
        if self.cursor.resume(self.now) {
            self.task();
        }
    }

    pub(super) fn task(&mut self) {
        let Task { pid, tid } = self.cursor.task;
        let (time, offset) = (self.now, self.next);
        let (from_sym, to_sym) = (pid as u32, tid as u32);
        self.output.items.push(Item { time, from: 0, to: 0, from_sym, to_sym, what: What::Task, offset });
    }
}
