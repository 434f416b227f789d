package admin

import "strconv"

// CountLimit is the number up to which a Count is exact.
const CountLimit = 100_000

// Count is a number of events. If More is set, it is more than N: only so many were counted.
type Count struct {
	N    int64 `json:"count"`
	More bool  `json:"more,omitempty"`
}

// countOf returns n as a Count; more says that there may be others, which were not counted.
func countOf(n int64, more bool) Count {
	if n > CountLimit {
		return Count{N: CountLimit, More: true}
	}
	return Count{N: n, More: more}
}

// String returns the number with commas: "12,345", or "more than 100,000".
func (c Count) String() string {
	text := strconv.FormatInt(c.N, 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	if c.More {
		return "more than " + text
	}
	return text
}
