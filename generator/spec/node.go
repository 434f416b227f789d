package spec

import (
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// Only this file imports the YAML library, so that a compatible one can replace it.
type node = yaml.Node

const (
	documentNode = yaml.DocumentNode
	mappingNode  = yaml.MappingNode
	sequenceNode = yaml.SequenceNode
	scalarNode   = yaml.ScalarNode
	aliasNode    = yaml.AliasNode
	taggedStyle  = yaml.TaggedStyle
	flowStyle    = yaml.FlowStyle
	doubleStyle  = yaml.DoubleQuotedStyle
	singleStyle  = yaml.SingleQuotedStyle
	literalStyle = yaml.LiteralStyle
	foldedStyle  = yaml.FoldedStyle
)

var newParser = yaml.NewDecoder

// Tags that the library gives to untagged values.
const (
	stringTag = "!!str"
	intTag    = "!!int"
	floatTag  = "!!float"
	boolTag   = "!!bool"
	nullTag   = "!!null"
	timeTag   = "!!timestamp"
	mergeTag  = "!!merge"
)

func isFlow(n *node, k yaml.Kind) bool  { return n.Kind == k && n.Style&flowStyle != 0 }
func isBlock(n *node, k yaml.Kind) bool { return n.Kind == k && n.Style&flowStyle == 0 }
func isText(n *node) bool               { return n.Kind == scalarNode && n.Tag == stringTag }

// isOneOf reports whether n is one of words, in any case.
func isOneOf(n *node, words ...string) bool {
	return n.Kind == scalarNode && slices.Contains(words, strings.ToLower(n.Value))
}

// describe says what n is, for "must be a list, not a mapping".
func describe(n *node) string {
	switch n.Kind {
	case mappingNode:
		return "a mapping"
	case sequenceNode:
		return "a list"
	case scalarNode:
		switch n.Tag {
		case stringTag:
			return "the text " + quoteShort(n.Value)
		case intTag, floatTag:
			return "the number " + Show(n.Value)
		case boolTag:
			return "the boolean " + Show(n.Value)
		case nullTag:
			return "an empty value"
		case timeTag:
			return "the timestamp " + Show(n.Value)
		}
	}
	return "something else"
}
