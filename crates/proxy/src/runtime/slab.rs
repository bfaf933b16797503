//! A slab in chunks: growing copies nothing and needs no contiguous memory for all values. Each of a thread's
//! thousands of connections has a few such values.

/// The values in one chunk; a power of two.
const CHUNK_LEN: usize = 64;

pub(crate) struct Slab<T> {
    /// All chunks but the last are full of places, some of which may be free.
    chunks: Vec<Vec<Option<T>>>,
    free: Vec<u32>,
    len: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), free: Vec::new(), len: 0 }
    }
}

impl<T> Slab<T> {
    /// Stores the result of `value`, which gets the value's key, until it is removed.
    pub(crate) fn insert_with(&mut self, new_value: impl FnOnce(usize) -> T) -> usize {
        self.len += 1;
        if let Some(key) = self.free.pop() {
            let key = key as usize;
            self.chunks[key / CHUNK_LEN][key % CHUNK_LEN] = Some(new_value(key));
            return key;
        }
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK_LEN) {
            self.chunks.push(Vec::with_capacity(CHUNK_LEN));
        }
        let last = self.chunks.len() - 1;
        let key = last * CHUNK_LEN + self.chunks[last].len();
        self.chunks[last].push(Some(new_value(key)));
        key
    }

    #[inline]
    pub(crate) fn get(&self, key: usize) -> Option<&T> {
        self.chunks.get(key / CHUNK_LEN)?.get(key % CHUNK_LEN)?.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: usize) -> Option<&mut T> {
        self.chunks.get_mut(key / CHUNK_LEN)?.get_mut(key % CHUNK_LEN)?.as_mut()
    }

    /// Removes a value; its key may be reused from then on.
    pub(crate) fn remove(&mut self, key: usize) -> Option<T> {
        let value = self.chunks.get_mut(key / CHUNK_LEN)?.get_mut(key % CHUNK_LEN)?.take()?;
        // There are never that many.
        self.free.push(key as u32);
        self.len -= 1;
        Some(value)
    }

    /// Returns all values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten().flatten()
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn they_are_found_by_their_numbers_until_they_are_removed(
            steps in proptest::collection::vec((0u8..3, any::<prop::sample::Index>()), 0..600),
        ) {
            let (mut chunks, mut model) = (Slab::default(), BTreeMap::new());
            for (nth, (step, which)) in steps.into_iter().enumerate() {
                if step > 0 || model.is_empty() {
                    let key = chunks.insert_with(|key| (key, nth));
                    prop_assert_eq!(model.insert(key, nth), None);
                } else {
                    let key = *which.get(&model.keys().copied().collect::<Vec<usize>>());
                    prop_assert_eq!(chunks.remove(key), model.remove(&key).map(|nth| (key, nth)));
                    prop_assert!(
                        chunks.get(key).is_none()
                            && chunks.get_mut(key).is_none()
                            && chunks.remove(key).is_none()
                    );
                }
                prop_assert_eq!(chunks.is_empty(), model.is_empty());
            }
            prop_assert!(model.iter().all(|(key, nth)| chunks.get(*key) == Some(&(*key, *nth))));
            prop_assert_eq!(chunks.iter().copied().collect::<BTreeMap<usize, usize>>(), model);
        }
    }
}
