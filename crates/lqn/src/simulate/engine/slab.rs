//! Requests, threads and branches, by number: what one leaves the next one takes, with the memory it has.

/// Things with numbers that are used again.
pub(super) struct Slab<T> {
    pub(super) all: Vec<T>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { all: Vec::new(), free: Vec::new() }
    }
}

impl<T: Default> Slab<T> {
    pub(super) fn add(&mut self, one: T) -> u32 {
        match self.free.pop() {
            Some(place) => {
                self.all[place as usize] = one;
                place
            }
            None => {
                self.all.push(one);
                self.all.len() as u32 - 1
            }
        }
    }

    /// One as it was left, with the memory it has.
    pub(super) fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.all.push(T::default());
            self.all.len() as u32 - 1
        })
    }

    pub(super) fn give(&mut self, place: u32) {
        self.free.push(place);
    }

    /// As many as there ever were at a time.
    pub(super) fn most(&self) -> usize {
        self.all.len()
    }

    pub(super) fn count(&self) -> usize {
        self.all.len() - self.free.len()
    }
}
