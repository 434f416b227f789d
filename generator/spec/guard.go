package spec

import "github.com/outboxgen/outboxgen/generator/diag"

// maxDepth is how deep mappings and lists may nest. A full outbox.yaml needs eight.
const maxDepth = 32

// guard reports the features of YAML that an outbox.yaml must not use: anchors, aliases, merge keys and tags. With
// them a small file can mean a large one, or a value can mean something other than what it shows. It also collects
// hints.
func (d *decoder) guard(root *node) { d.guardAt(root, 1) }

func (d *decoder) guardAt(n *node, depth int) {
	d.addHint(n)
	if n.Anchor != "" {
		d.Errorf(d.at(n), diag.YAMLAnchor,
			"the anchor &%s is not allowed: repeat the value, or move it into types or defaults", Show(n.Anchor))
	}
	switch {
	case n.Kind == aliasNode:
		d.aliasRefused(d.at(n), n.Value, "")
		return
	case n.Style&taggedStyle != 0:
		d.Errorf(d.at(n), diag.YAMLTag, "the tag %s is not allowed: put the value in quotes to make it text",
			quoteShort(n.Tag))
	}
	if n.Kind != mappingNode && n.Kind != sequenceNode {
		return
	}
	if depth > maxDepth {
		d.Errorf(d.at(n), diag.YAMLTooDeep, "mappings and lists are nested more than %d deep", maxDepth)
		return
	}
	for i, child := range n.Content {
		if n.Kind == mappingNode && i%2 == 0 && isMerge(child) {
			d.Errorf(d.at(child), diag.YAMLMergeKey,
				"the merge key << is not allowed: repeat the keys, or move them into types or defaults")
			continue
		}
		d.guardAt(child, depth+1)
	}
}

// refused reports whether the guard has a finding about n itself that makes its value meaningless.
func refused(n *node) bool { return n.Kind == aliasNode || n.Style&taggedStyle != 0 }

func isMerge(key *node) bool { return key.Kind == scalarNode && key.Tag == mergeTag && !refused(key) }

func (d *decoder) aliasRefused(pos diag.Pos, name, hint string) {
	d.Errorf(pos, diag.YAMLAlias, "the alias *%s is not allowed: repeat the value, or move it into types or defaults%s",
		Show(name), hint)
}
