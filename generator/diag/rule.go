package diag

import "slices"

// Rule is the stable id of a check. It is part of the tool's interface: scripts and editors match it.
type Rule string

// Rules about the YAML itself.
const (
	YAMLSyntax   Rule = "yaml-syntax"
	YAMLEncoding Rule = "yaml-encoding"
	YAMLTooLarge Rule = "yaml-too-large"
	YAMLTooDeep  Rule = "yaml-too-deep"
	YAMLAnchor   Rule = "yaml-anchor"
	YAMLAlias    Rule = "yaml-alias"
	YAMLMergeKey Rule = "yaml-merge-key"
	YAMLTag      Rule = "yaml-tag"
	YAMLDocument Rule = "yaml-document"
)

// Rules about keys and the shape of their values.
const (
	UnknownVersion Rule = "unknown-version"
	UnknownKey     Rule = "unknown-key"
	DuplicateKey   Rule = "duplicate-key"
	WrongType      Rule = "wrong-type"
	MissingKey     Rule = "missing-key"
	UnknownValue   Rule = "unknown-value"
	EmptySection   Rule = "empty-section"
)

// Rules about names.
const (
	BadName       Rule = "bad-name"
	BadGoName     Rule = "bad-go-name"
	NameCollision Rule = "name-collision"
)

// Rules about types and fields.
const (
	UnknownType       Rule = "unknown-type"
	BadType           Rule = "bad-type"
	RecursiveType     Rule = "recursive-type"
	EnumEmpty         Rule = "enum-empty"
	EnumDuplicate     Rule = "enum-duplicate"
	EnumBadValue      Rule = "enum-bad-value"
	AttributeType     Rule = "attribute-type"
	AttributeBounds   Rule = "attribute-bounds"
	AttributeConflict Rule = "attribute-conflict"
	PatternInvalid    Rule = "pattern-invalid"
)

// Rules about tenants, keys and entities.
const (
	TenantUnknownField    Rule = "tenant-unknown-field"
	TenantNotUUID         Rule = "tenant-not-uuid"
	TemplateSyntax        Rule = "template-syntax"
	DedupeUnknownField    Rule = "dedupe-unknown-field"
	DedupeOptionalField   Rule = "dedupe-optional-field"
	DedupeFieldType       Rule = "dedupe-field-type"
	DedupeSensitive       Rule = "dedupe-sensitive-field"
	DedupeNotInjective    Rule = "dedupe-not-injective"
	DedupeTenantPrefix    Rule = "dedupe-tenant-prefix"
	DedupeTenantOnly      Rule = "dedupe-tenant-only"
	PartitionUnknownField Rule = "partition-unknown-field"
	PartitionOptional     Rule = "partition-optional-field"
	PartitionFieldType    Rule = "partition-field-type"
	PartitionSensitive    Rule = "partition-sensitive-field"
	PartitionNotInjective Rule = "partition-not-injective"
	EntityUnknownField    Rule = "entity-unknown-field"
	EntityOptionalField   Rule = "entity-optional-field"
	EntityFieldType       Rule = "entity-field-type"
	EntitySensitive       Rule = "entity-sensitive-field"
	EntityNotInjective    Rule = "entity-not-injective"
	EntityVersionType     Rule = "entity-version-type"
)

// Rules about publishing and consuming.
const (
	PublishBroker      Rule = "publish-broker"
	PublishDestination Rule = "publish-destination"
	PublishKey         Rule = "publish-key"
	PublishHeader      Rule = "publish-header"
	PublishUnread      Rule = "publish-unread"
	ListenerPublish    Rule = "listener-publish"
	ConsumerEmpty      Rule = "consumer-empty"
	ConsumerInternal   Rule = "consumer-internal"
)

// Rules about policies, versions and listeners.
const (
	RetryBounds            Rule = "retry-bounds"
	RetryShort             Rule = "retry-short"
	LeaseBounds            Rule = "lease-bounds"
	RetentionBounds        Rule = "retention-bounds"
	VersionBounds          Rule = "version-bounds"
	ListenerMissing        Rule = "listener-missing"
	ListenerNone           Rule = "listener-none"
	ListenerUnknownTopic   Rule = "listener-unknown-topic"
	ListenerQueueTopic     Rule = "listener-queue-topic"
	ListenerDuplicateTopic Rule = "listener-duplicate-topic"
	ListenerConcurrency    Rule = "listener-concurrency"
	ListenerShards         Rule = "listener-shards"
	ListenerMaxLag         Rule = "listener-max-lag"
)

// Rules about the folder that Go is generated into.
const (
	OutputShared  Rule = "output-shared"
	OutputPackage Rule = "output-package"
)

// RuleInfo describes a rule in a line of documentation.
type RuleInfo struct {
	ID      Rule
	Summary string
}

var rules = []RuleInfo{
	{YAMLSyntax, "The file is valid YAML."},
	{YAMLEncoding, "The file is UTF-8 without NUL and other control characters."},
	{YAMLTooLarge, "The file has at most 1 MiB."},
	{YAMLTooDeep, "Mappings and lists nest at most 32 deep."},
	{YAMLAnchor, "Anchors (&name) are refused: repeat the value, or move it into types or defaults."},
	{YAMLAlias, "Aliases (*name) are refused: repeat the value, or move it into types or defaults."},
	{YAMLMergeKey, "Merge keys (<<) are refused."},
	{YAMLTag, "Tags (!name, !!str) are refused: quote a value to make it text."},
	{YAMLDocument, "A file holds one document."},

	{UnknownVersion, "The file's version is one that this outboxgen reads."},
	{UnknownKey, "Every key is known where it stands."},
	{DuplicateKey, "A key stands once in its mapping."},
	{WrongType, "A value has the type that its key wants."},
	{MissingKey, "Required keys are there."},
	{UnknownValue, "A key with a closed set of values has one of them."},
	{EmptySection, "Namespaces, topics, fields and a listener's topics are not empty."},

	{BadName, "Names match ^[a-z][a-z0-9_]{0,40}$; a package is no Go keyword and can be imported where it has to be, a schema no SQL reserved word."},
	{BadGoName, "A go override is an exported Go identifier of letters and digits."},
	{NameCollision, "Names stay distinct after Go and SQL casing, with everything that is generated from them."},

	{UnknownType, "A field's type is built in or declared under types."},
	{BadType, "A field's type follows the grammar: T, []T, map[string]T, with an optional trailing ?."},
	{RecursiveType, "A shared type does not contain itself, directly or through others."},
	{EnumEmpty, "An enum has at least one value."},
	{EnumDuplicate, "The values of an enum are distinct."},
	{EnumBadValue, "An enum value starts with a letter or digit and holds letters, digits, '_', '-' and '.' only, or names its constant with go and is up to 200 bytes of printable text."},
	{AttributeType, "A field attribute applies to the type of its field."},
	{AttributeBounds, "The bounds of a field fit its type, and the lower one is not above the upper one."},
	{AttributeConflict, "The attributes of a field or type do not contradict one another."},
	{PatternInvalid, "A pattern is a regular expression of Go's regexp package (RE2)."},

	{TenantUnknownField, "The tenant is a field of the payload."},
	{TenantNotUUID, "The tenant is a required field of type uuid, or of a shared scalar that is one."},
	{TemplateSyntax, "A key template is made of printable ASCII and {field}, in segments separated by '/'."},
	{DedupeUnknownField, "A dedupe_key names fields of the payload."},
	{DedupeOptionalField, "A dedupe_key is made of required fields."},
	{DedupeFieldType, "A dedupe_key is made of uuid, string, int32, int64, date and enum fields."},
	{DedupeSensitive, "A dedupe_key holds no sensitive field: keys appear in logs and in the CLI."},
	{DedupeNotInjective, "A dedupe_key never renders two tuples of fields alike: '/' between placeholders, at least one of them."},
	{DedupeTenantPrefix, "With a tenant, the dedupe_key starts with {<tenant field>}/."},
	{DedupeTenantOnly, "Warning: a dedupe key has a field other than the tenant, or a tenant has one event."},
	{PartitionUnknownField, "A partition_key names fields of the payload."},
	{PartitionOptional, "A partition_key is made of required fields."},
	{PartitionFieldType, "A partition_key is made of uuid, string, int32, int64, date and enum fields."},
	{PartitionSensitive, "A partition_key holds no sensitive field: keys appear in logs and in the CLI."},
	{PartitionNotInjective, "A partition_key never renders two tuples of fields alike: '/' between placeholders, at least one of them."},
	{EntityUnknownField, "An entity names fields of the payload."},
	{EntityOptionalField, "An entity is made of required fields."},
	{EntityFieldType, "An entity id is made of uuid, string, int32, int64, date and enum fields."},
	{EntitySensitive, "An entity holds no sensitive field: entities appear in logs and in the CLI."},
	{EntityNotInjective, "An entity id never renders two tuples of fields alike: '/' between placeholders, at least one of them."},
	{EntityVersionType, "An entity version is a field of type int32 or int64."},

	{RetryBounds, "max_attempts is 1 to 1000, base_delay at least 1ms and at most max_delay, max_delay at most 720h."},
	{RetryShort, "Warning: the retries of a topic or listener last ten minutes at least, so that a restart of what it calls kills no event."},
	{LeaseBounds, "A lease is 1s to 24h."},
	{RetentionBounds, "retention.delivered, the dedupe window, exceeds the longest retry horizon, or is 0s in a queue topic without a dedupe_key; retention.dead is at least as long."},
	{VersionBounds, "A payload version is 1 to 2147483647."},
	{ListenerMissing, "A log topic has a listener, or says listeners: none."},
	{ListenerNone, "Only a log topic that no listener reads says listeners: none."},
	{ListenerUnknownTopic, "A listener names declared topics."},
	{ListenerQueueTopic, "A listener reads topics with delivery log."},
	{ListenerDuplicateTopic, "A listener names a topic once."},
	{ListenerConcurrency, "A listener's concurrency is 1 to 1000, and 1 with mode transactional."},
	{ListenerShards, "A listener has 1 to 64 shards."},
	{ListenerMaxLag, "A listener's max_lag is at least 1s."},

	{PublishBroker, "A publish has exactly one of kafka, nats and webhook."},
	{PublishDestination, "A Kafka topic is 1 to 249 letters, digits, '.', '_' and '-', a NATS subject tokens of printable ASCII joined by '.' without spaces and wildcards, a webhook a name."},
	{PublishKey, "A publish key follows the rules of a partition_key, and belongs to a queue topic: a log topic is published in the order of its partition_key."},
	{PublishHeader, "A header is named ^[a-z][a-z0-9-]{0,60}$ and not like one that publishers set; its value is printable ASCII with {field} of required scalars that are not sensitive."},
	{PublishUnread, "A log topic that says publish is read by a listener that says publish: true."},
	{ListenerPublish, "A listener that says publish is leased, and its topics all say publish, to one broker."},
	{ConsumerEmpty, "A file that has a consumer publishes at least one topic."},
	{ConsumerInternal, "Warning: the consumer package does not lie below a folder internal, from which other modules cannot import it."},

	{OutputShared, "No other YAML file generates the same Go file."},
	{OutputPackage, "The output folder holds Go files of the package only."},
}

// Rules returns every rule with its description, in the order of the documentation.
func Rules() []RuleInfo { return slices.Clone(rules) }
