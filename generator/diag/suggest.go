package diag

import "strings"

// isStem reports whether one name extends the other at an underscore or slash, as turn_id extends turn.
func isStem(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	if len(a) < 2 {
		return false
	}
	if rest, ok := strings.CutPrefix(b, a); ok && (rest == "" || rest[0] == '_' || rest[0] == '/') {
		return true
	}
	rest, ok := strings.CutSuffix(b, a)
	return ok && (rest == "" || rest[len(rest)-1] == '_' || rest[len(rest)-1] == '/')
}

// sameWord reports whether a and b differ only in case and in word separators: turnId and turn_id.
func sameWord(a, b string) bool {
	for {
		a, b = strings.TrimLeft(a, "_- "), strings.TrimLeft(b, "_- ")
		if a == "" || b == "" {
			return a == b
		}
		if a[0]|0x20 != b[0]|0x20 {
			return false
		}
		a, b = a[1:], b[1:]
	}
}

// distance returns the optimal string alignment distance of a and b: insertions, deletions,
// substitutions and swaps of neighbours, in bytes. A distance of limit or more is returned as limit.
func distance(a, b string, limit int) int {
	if limit <= 0 {
		return 0
	}
	for a != "" && b != "" && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for a != "" && b != "" && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	const longest = 96 // namespace/topic has at most 83 bytes; a longer text has no near match
	if len(a) > longest || len(b) > longest {
		return limit
	}
	var rows [3][longest + 1]int
	before, above, row := &rows[0], &rows[1], &rows[2]
	for j := range len(b) + 1 {
		above[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		nearest := i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			d := min(above[j]+1, row[j-1]+1, above[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, before[j-2]+1)
			}
			row[j] = d
			nearest = min(nearest, d)
		}
		if nearest > limit {
			return limit
		}
		before, above, row = above, row, before
	}
	return min(above[len(b)], limit)
}
