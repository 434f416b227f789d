package model

import (
	"cmp"
	"strings"

	"github.com/outboxgen/outboxgen/generator/diag"
)

// decl is something of the YAML that other things must not share a generated name with.
type decl struct {
	what string   // topic mini_chat/turn_finalized
	pos  diag.Pos // where a finding about its name points
	fix  string   // what to do about a name that is taken; "" means to rename, or to set go
}

// symbols is one scope of generated names. Names that differ in case only collide too: they become one
// in SQL, in file names on some systems, and in the eyes of a reader.
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

// declare takes names for owner. A name that another has is reported, once for the two of them.
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
			taken = "differs in case only from " + other.name + " of"
		}
		s.Errorf(owner.pos, diag.NameCollision, "%s: the Go name %s %s %s (line %d): %s", owner.what, name, taken, other.owner.what, other.owner.pos.Line, cmp.Or(owner.fix, "rename one, or set its go: name"))
	}
}
