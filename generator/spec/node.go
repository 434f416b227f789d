package spec

import "gopkg.in/yaml.v3"

// The YAML library enters the package here alone: another that offers the same names takes one line.
type node = yaml.Node

const (
	documentNode = yaml.DocumentNode
	mappingNode  = yaml.MappingNode
	sequenceNode = yaml.SequenceNode
	scalarNode   = yaml.ScalarNode
	aliasNode    = yaml.AliasNode
	taggedStyle  = yaml.TaggedStyle
	flowStyle    = yaml.FlowStyle
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

// describe names what n is, for "want a list, got a mapping".
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
			return "nothing"
		case timeTag:
			return "the timestamp " + Show(n.Value)
		}
	}
	return "something else"
}
