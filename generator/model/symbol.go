package model

import (
	"cmp"
	"strings"

	"github.com/outboxgen/outboxgen/generator/diag"
)

// decl is something in the YAML that generated names are made from. No two may share a name.
type decl struct {
	what   string   // topic mini_chat/turn_finalized
	pos    diag.Pos // where a finding about its name points
	fix    string   // what to do about a name that is taken; "" means to rename, or to set go
	others string   // the fix of another that wants its name; "" as before
}

// symbols is one scope of generated names. Names that differ only in case collide too: they are equal in SQL and in
// file names on some systems, and readers confuse them.
type symbols struct {
	*diag.Reporter
	taken map[string]symbol
	told  map[[2]*decl]bool
}

type symbol struct {
	name  string
	owner *decl
}

func (b *builder) newSymbols() *symbols {
	return &symbols{b.Reporter, make(map[string]symbol), make(map[[2]*decl]bool)}
}

// declare reserves names for owner. A name that another owner has is reported, once per pair of owners.
func (s *symbols) declare(owner *decl, names ...string) {
	for _, name := range names {
		folded := strings.ToLower(name)
		other, collides := s.taken[folded]
		if !collides {
			s.taken[folded] = symbol{name, owner}
			continue
		}
		pair := [2]*decl{other.owner, owner}
		if other.owner == owner || s.told[pair] {
			continue
		}
		s.told[pair] = true
		taken := "is taken by"
		if other.name != name {
			taken = "differs only in case from " + other.name + " of"
		}
		s.Errorf(owner.pos, diag.NameCollision, "%s: the Go name %s %s %s (line %d): %s", owner.what, name, taken,
			other.owner.what, other.owner.pos.Line, cmp.Or(owner.fix, other.owner.others, "rename one, or set its go: name"))
	}
}
