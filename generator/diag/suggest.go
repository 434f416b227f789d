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

// distance returns the optimal string alignment distance of a and b: insertions, deletions, substitutions and swaps of
// neighbours, in bytes. A distance of limit or more is returned as limit.
func distance(a, b string, limit int) int {
	const longest = 96 // namespace/topic has at most 83 bytes; a longer text has no near match
	if limit <= 0 || len(a) > longest || len(b) > longest || max(len(a), len(b))-min(len(a), len(b)) >= limit {
		return max(limit, 0)
	}
	var rows [longest + 1][longest + 1]int
	for i := range len(a) + 1 {
		for j := range len(b) + 1 {
			switch {
			case i == 0 || j == 0:
				rows[i][j] = i + j
			case a[i-1] == b[j-1]:
				rows[i][j] = rows[i-1][j-1]
			default:
				rows[i][j] = 1 + min(rows[i-1][j], rows[i][j-1], rows[i-1][j-1])
				if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
					rows[i][j] = min(rows[i][j], 1+rows[i-2][j-2])
				}
			}
		}
	}
	return min(rows[len(a)][len(b)], limit)
}
