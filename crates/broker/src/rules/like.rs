//! Patterns of `LIKE`: `%` is any text, `_` any character.

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LikePattern(Vec<PatternPart>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PatternPart {
    Character(char),
    AnyCharacter,
    AnyText,
}

impl LikePattern {
    /// A character after `escape` stands for itself.
    pub(super) fn compile(pattern: &str, escape: Option<char>) -> Self {
        let mut parts = Vec::with_capacity(pattern.len());
        let mut characters = pattern.chars();
        while let Some(character) = characters.next() {
            parts.push(match character {
                // An escape at the very end stands for itself too.
                _ if Some(character) == escape => PatternPart::Character(characters.next().unwrap_or(character)),
                '%' => PatternPart::AnyText,
                '_' => PatternPart::AnyCharacter,
                _ => PatternPart::Character(character),
            });
        }
        Self(parts)
    }

    /// Goes back only to the last `%`: at most text length times pattern length steps.
    pub(super) fn matches(&self, text: &str) -> bool {
        let (mut at, mut rest) = (0, text.chars());
        let mut last_any = None;
        loop {
            let here = rest.clone();
            if self.0.get(at) == Some(&PatternPart::AnyText) {
                at += 1;
                last_any = Some((at, here));
                continue;
            }
            let matched = match (self.0.get(at), rest.next()) {
                (None, None) => return true,
                (Some(PatternPart::AnyCharacter), Some(_)) => true,
                (Some(PatternPart::Character(expected)), Some(found)) => *expected == found,
                _ => false,
            };
            if matched {
                at += 1;
                continue;
            }
            // Let the last `%` take one character more.
            let Some((after, start)) = &mut last_any else { return false };
            if start.next().is_none() {
                return false;
            }
            (at, rest) = (*after, start.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_like_sql() {
        let cases = [
            ("abc", "abc", true),
            ("abc", "ABC", false),
            ("", "", true),
            ("", "a", false),
            ("%", "", true),
            ("%bus%", "service bus", true),
            ("%bus%", "service", false),
            ("a_c", "abc", true),
            ("a_c", "ac", false),
            ("_", "ä", true),
            ("%a%b", "xaxbxb", true),
            ("%a%b", "xaxbx", false),
            ("a%%b", "ab", true),
            ("%aab", "aaaab", true),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(LikePattern::compile(pattern, None).matches(text), expected, "{text} LIKE {pattern}");
        }
        let escaped = LikePattern::compile("ABC\\%", Some('\\'));
        assert!(escaped.matches("ABC%") && !escaped.matches("ABCD"));
        assert!(LikePattern::compile("a!!b!", Some('!')).matches("a!b!"));
    }
}
