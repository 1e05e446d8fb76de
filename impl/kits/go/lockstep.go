// SPDX-License-Identifier: MIT
// Copyright (c) 2026 the Lockstep authors

// A kit for Lockstep drivers in Go (1.18 or later), to be copied into the package.
//
// It reads messages, writes answers, numbers caches and snapshots, and refuses what it
// cannot answer. You write caches: a function that opens one from the config, and a
// method for each operation, which gets fields of the message and puts fields of the
// answer. Refuse before you change anything: it panics, and the kit recovers, in the
// goroutine of the operation alone. Names that begin with kit are its own.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
)

// Array has numbers in row-major order.
type Array struct {
	Shape []int
	Data  []float32
}

// kitLargest is the largest size of an axis: a list of so many tokens fits in memory, even
// if V has no numbers that would bound it.
const kitLargest = 1 << 24

// Token is K or V of one token: [heads * dim].
type Token []float32

// Snapshot has the positions [Begin, End) of a cache.
type Snapshot struct {
	Begin, End int
	Content    any
}

// kitRefusal is what Refuse panics with.
type kitRefusal struct{ err, message string }

// Refuse answers an error in the place of all else, and ends the operation: "usage" if
// the call breaks a rule, or another of the README of drivers.
func Refuse(err, format string, arguments ...any) {
	panic(kitRefusal{err, fmt.Sprintf(format, arguments...)})
}

func kitFail(format string, arguments ...any) { Refuse("failed", format, arguments...) }

// --- what is numbered ------------------------------------------------------------------

type kitTable[T any] map[int]T

func (items kitTable[T]) add(item T) int {
	number := 0
	for _, used := items[number]; used; _, used = items[number] {
		number++
	}
	items[number] = item
	return number
}

func (items kitTable[T]) get(number int, name string) T {
	item, found := items[number]
	if !found {
		kitFail("%s: there is no number %d", name, number)
	}
	return item
}

type kitCache struct {
	kind           *Kind
	content, owner any
}

type kitTables struct {
	caches    kitTable[kitCache]
	snapshots kitTable[Snapshot]
	saved     kitTable[any]
}

// --- the fields of a message, or of a config -------------------------------------------

// Message is an object of JSON.
type Message struct {
	fields map[string]any
	tables *kitTables
}

func (message Message) get(name string) any {
	value, found := message.fields[name]
	if !found {
		kitFail("the message has no %s", name)
	}
	return value
}

// IsNull tells whether a field is null; it must be there.
func (message Message) IsNull(name string) bool { return message.get(name) == nil }

// GetInteger takes 1.0 and 1e0 as well.
func (message Message) GetInteger(name string) int {
	number, is := kitToInteger(message.get(name))
	if !is {
		kitFail("%s is not an integer", name)
	}
	return number
}

// GetBoolean returns true or false.
func (message Message) GetBoolean(name string) bool {
	truth, is := message.get(name).(bool)
	if !is {
		kitFail("%s is not true or false", name)
	}
	return truth
}

// GetText returns a text that is not null.
func (message Message) GetText(name string) string {
	text, is := message.get(name).(string)
	if !is {
		kitFail("%s is not a text", name)
	}
	return text
}

// GetTexts returns a list of texts, with "" for null.
func (message Message) GetTexts(name string) []string {
	texts := []string{}
	for _, item := range kitToList(message.get(name), name) {
		text, is := item.(string)
		if !is && item != nil {
			kitFail("%s has an item that is not a text", name)
		}
		texts = append(texts, text)
	}
	return texts
}

// GetIntegers returns a list; an item that is not an integer is a mistake of usage.
func (message Message) GetIntegers(name string) []int {
	integers := []int{}
	for _, item := range kitToList(message.get(name), name) {
		integer, is := kitToInteger(item)
		if !is {
			Refuse("usage", "%s has an item that is not an integer", name)
		}
		integers = append(integers, integer)
	}
	return integers
}

// GetObject returns an object, whose fields are read as those of a message.
func (message Message) GetObject(name string) Message {
	return message.toObject(message.get(name), name)
}

// GetObjects returns a list of objects.
func (message Message) GetObjects(name string) []Message {
	objects := []Message{}
	for _, item := range kitToList(message.get(name), name) {
		objects = append(objects, message.toObject(item, name))
	}
	return objects
}

func (message Message) toObject(value any, name string) Message {
	fields, is := value.(map[string]any)
	if !is {
		kitFail("%s is not an object", name)
	}
	return Message{fields, message.tables}
}

// GetArray returns a shape, and as many numbers as it says.
func (message Message) GetArray(name string) Array {
	object := message.GetObject(name)
	array := Array{object.GetIntegers("shape"), nil}
	data := kitToList(object.get("data"), name)
	count := 1.0
	for _, size := range array.Shape {
		if size < 0 || size > kitLargest {
			kitFail("%s: a size is not in [0, %d]", name, kitLargest)
		}
		count *= float64(size)
	}
	if count != float64(len(data)) {
		kitFail("%s has %d numbers, not as many as its shape says", name, len(data))
	}
	for _, item := range data {
		array.Data = append(array.Data, kitToFloat(item, name))
	}
	return array
}

// GetTokens returns K or V; any shape but [1, heads, tokens, dim] is a mistake of usage.
func (message Message) GetTokens(name string, heads, dim int) []Token {
	array := message.GetArray(name)
	shape, data := array.Shape, array.Data
	if len(shape) != 4 || shape[0] != 1 || shape[1] != heads || shape[3] != dim {
		Refuse("usage", "%s: shape %v, not [1, %d, tokens, %d]", name, shape, heads, dim)
	}
	tokens := make([]Token, shape[2])
	for head := 0; head < heads; head++ {
		for place := range tokens {
			tokens[place] = append(tokens[place], data[:dim]...)
			data = data[dim:]
		}
	}
	return tokens
}

// GetSnapshot returns nil if the field is null.
func (message Message) GetSnapshot(name string) *Snapshot {
	if message.IsNull(name) {
		return nil
	}
	snapshot := message.tables.snapshots.get(message.GetInteger(name), name)
	return &snapshot
}

// UseSnapshot frees the number of a snapshot that is used up.
func (message Message) UseSnapshot(name string) {
	if message.GetSnapshot(name) != nil {
		delete(message.tables.snapshots, message.GetInteger(name))
	}
}

// GetSaved returns what PutSaved has put.
func (message Message) GetSaved(name string) any {
	return message.tables.saved.get(message.GetInteger(name), name)
}

// UseCaches frees the numbers of caches that are used up.
func (message Message) UseCaches(name string) []any {
	contents := []any{}
	for _, number := range message.GetIntegers(name) {
		contents = append(contents, message.tables.caches.get(number, name).content)
	}
	for _, number := range message.GetIntegers(name) {
		delete(message.tables.caches, number)
	}
	return contents
}

func kitToList(value any, name string) []any {
	list, is := value.([]any)
	if !is {
		kitFail("%s is not a list", name)
	}
	return list
}

func kitToInteger(value any) (int, bool) {
	number, _ := value.(json.Number)
	wide, err := strconv.ParseFloat(number.String(), 64)
	is := err == nil && wide == math.Trunc(wide) && math.Abs(wide) < 1<<53
	return int(wide), is
}

func kitToFloat(value any, name string) float32 {
	switch each := value.(type) {
	case nil:
		return float32(math.NaN())
	case json.Number: // beyond float32 it is infinite, and an error
		number, _ := strconv.ParseFloat(each.String(), 32)
		return float32(number)
	case string:
		if each == "nan" || each == "inf" || each == "-inf" {
			number, _ := strconv.ParseFloat(each, 32)
			return float32(number)
		}
	}
	kitFail("%s has an item that is not a number", name)
	return 0
}

// --- the fields of an answer -----------------------------------------------------------

// Answer collects the fields of an answer.
type Answer struct {
	kind   *Kind
	owner  any
	tables *kitTables
	text   strings.Builder
}

// PutJSON puts anything.
func (answer *Answer) PutJSON(name, value string) {
	answer.text.WriteString("," + kitQuote(name) + ":" + value)
}

// PutNull puts null.
func (answer *Answer) PutNull(name string) { answer.PutJSON(name, "null") }

// PutText puts a text.
func (answer *Answer) PutText(name, text string) { answer.PutJSON(name, kitQuote(text)) }

// PutInteger puts an integer.
func (answer *Answer) PutInteger(name string, number int) {
	answer.PutJSON(name, strconv.Itoa(number))
}

// PutBoolean puts true or false.
func (answer *Answer) PutBoolean(name string, truth bool) {
	answer.PutJSON(name, strconv.FormatBool(truth))
}

// PutIntegers puts a list.
func (answer *Answer) PutIntegers(name string, integers []int) {
	answer.PutJSON(name, kitJoin(integers, strconv.Itoa))
}

// PutArray puts a shape and its numbers, with null for NaN.
func (answer *Answer) PutArray(name string, array Array) {
	answer.PutJSON(name, FormatArray(array))
}

// FormatArray returns an array as JSON, for PutJSON.
func FormatArray(array Array) string {
	return kitFormatData(array.Shape, kitJoin(array.Data, kitFormat))
}

// PutTokens puts K or V as [1, heads, tokens, dim].
func (answer *Answer) PutTokens(name string, heads, dim int, tokens []Token) {
	array := Array{[]int{1, heads, len(tokens), dim}, nil}
	for head := 0; head < heads; head++ {
		for _, token := range tokens {
			array.Data = append(array.Data, token[head*dim:(head+1)*dim]...)
		}
	}
	answer.PutArray(name, array)
}

// PutMask tells what each row sees of each column; additive: as 0 and -inf.
func (answer *Answer) PutMask(rows, columns int, seen []bool, additive bool) {
	words := map[bool]string{true: "1", false: "0"}
	if additive {
		words = map[bool]string{true: "0", false: `"-inf"`}
	}
	data := kitJoin(seen, func(each bool) string { return words[each] })
	answer.PutJSON("mask", kitFormatData([]int{rows, columns}, data))
}

// PutCache puts a new cache, of the kind of the one that was asked.
func (answer *Answer) PutCache(content any) {
	answer.PutInteger("cache", answer.tables.caches.add(kitCache{answer.kind, content, nil}))
}

// NumberPart returns the number of a cache of another kind that is in the one that was
// asked: below a prefix cache. It is dropped with that. The kind need not be declared.
func (answer *Answer) NumberPart(kind *Kind, content any) int {
	for number, cache := range answer.tables.caches {
		if cache.content == content {
			return number
		}
	}
	return answer.tables.caches.add(kitCache{kind, content, answer.owner})
}

// PutSnapshot puts null for nil.
func (answer *Answer) PutSnapshot(name string, snapshot *Snapshot) {
	answer.PutJSON(name, answer.number(snapshot))
}

// PutSnapshots puts a list, with null for nil.
func (answer *Answer) PutSnapshots(name string, snapshots []*Snapshot) {
	answer.PutJSON(name, kitJoin(snapshots, answer.number))
}

// PutSaved puts the number of a content that is kept.
func (answer *Answer) PutSaved(content any) {
	answer.PutInteger("saved", answer.tables.saved.add(content))
}

func kitFormatData(shape []int, data string) string {
	return `{"shape":` + kitJoin(shape, strconv.Itoa) + `,"data":` + data + "}"
}

func (answer *Answer) number(snapshot *Snapshot) string {
	if snapshot == nil {
		return "null"
	}
	number := answer.tables.snapshots.add(*snapshot)
	form := `{"number":%d,"begin":%d,"end":%d}`
	return fmt.Sprintf(form, number, snapshot.Begin, snapshot.End)
}

func kitJoin[T any](items []T, format func(T) string) string {
	texts := make([]string, len(items))
	for place, item := range items {
		texts[place] = format(item)
	}
	return "[" + strings.Join(texts, ",") + "]"
}

func kitQuote(text string) string {
	quoted, _ := json.Marshal(text)
	return string(quoted)
}

// kitFormat writes as many digits as tell any two floats apart.
func kitFormat(number float32) string {
	switch wide := float64(number); {
	case math.IsNaN(wide):
		return "null"
	case math.IsInf(wide, 1):
		return `"inf"`
	case math.IsInf(wide, -1):
		return `"-inf"`
	default:
		return strconv.FormatFloat(wide, 'g', -1, 32)
	}
}

// --- what a driver declares ------------------------------------------------------------
// "declares" is an object of JSON: all that the README of drivers lists beside what the
// kit adds.

// Operation is one of caches of type C. Run nil: declared, but not written yet.
type Operation[C any] struct {
	Name string
	Run  func(C, Message, *Answer)
}

// Kind is one that the driver declares; see MakeKind.
type Kind struct {
	contract, kind, declares string
	open                     func(Message) any
	names                    []string
	operations               map[string]func(any, Message, *Answer)
}

// MakeKind declares a kind. declares: {"refuses": true, "config": {…}}; the kit adds
// "operations", unless they are there: those that programs have. open gets the config.
func MakeKind[C any](
	contract, kind, declares string, open func(Message) C, operations []Operation[C],
) *Kind {
	made := &Kind{contract: contract, kind: kind, declares: declares}
	made.open = func(config Message) any { return open(config) }
	made.operations = map[string]func(any, Message, *Answer){}
	for _, each := range operations {
		made.names = append(made.names, each.Name)
		if run := each.Run; run != nil {
			made.operations[each.Name] = func(asked any, message Message, answer *Answer) {
				run(asked.(C), message, answer)
			}
		}
	}
	return made
}

// Driver declares {"name": "…", …}; the kit adds "protocol" and "contracts".
type Driver struct {
	Declares string
	Kinds    []*Kind
	tables   kitTables
}

// Run answers line by line until the input ends. A line without an id is answered as 0.
// What else is printed goes to the standard error.
func (driver *Driver) Run() {
	output := os.Stdout
	os.Stdout = os.Stderr
	driver.tables = kitTables{kitTable[kitCache]{}, kitTable[Snapshot]{}, kitTable[any]{}}
	input := bufio.NewReader(os.Stdin)
	for {
		line, err := input.ReadBytes('\n')
		if len(line) > 0 { // the last one may have no end
			id, text := driver.answerLine(line)
			if _, err := fmt.Fprintf(output, "{\"id\":%d%s}\n", id, text); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (driver *Driver) answerLine(line []byte) (id int, text string) {
	defer func() {
		switch caught := recover().(type) {
		case nil:
		case kitRefusal:
			text = `,"error":` + kitQuote(caught.err) + `,"message":` + kitQuote(caught.message)
		default:
			panic(caught)
		}
	}()
	message := Message{driver.parse(line), &driver.tables}
	id = message.GetInteger("id")
	switch operation := message.GetText("op"); operation {
	case "hello":
		return id, driver.hello()
	case "open":
		return id, driver.open(message)
	case "drop":
		driver.drop(message)
		return id, ""
	default:
		return id, driver.operate(operation, message)
	}
}

func (driver *Driver) parse(line []byte) map[string]any {
	var fields map[string]any
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.UseNumber()
	if err := decoder.Decode(&fields); err != nil {
		kitFail("the line is not JSON of a message: %v", err)
	}
	if fields == nil {
		kitFail("the line is null, not a message")
	}
	if _, err := decoder.Token(); err != io.EOF {
		kitFail("the line is more than one message")
	}
	return fields
}

func (driver *Driver) hello() string {
	contracts, names := map[string][]string{}, []string{}
	for _, kind := range driver.Kinds {
		if contracts[kind.contract] == nil {
			names = append(names, kind.contract)
		}
		text := `"operations":` + kitJoin(kind.names, kitQuote) + kitOpenObject(kind.declares)
		if strings.Contains(kind.declares, `"operations"`) {
			text = kitOpenObject(kind.declares)[1:]
		}
		text = kitQuote(kind.kind) + ":{" + text + "}"
		contracts[kind.contract] = append(contracts[kind.contract], text)
	}
	for place, name := range names {
		names[place] = kitQuote(name) + ":{" + strings.Join(contracts[name], ",") + "}"
	}
	text := `,"protocol":1` + kitOpenObject(driver.Declares)
	return text + `,"contracts":{` + strings.Join(names, ",") + "}"
}

func (driver *Driver) open(message Message) string {
	config := message.GetObject("config")
	name := config.GetText("kind")
	for _, kind := range driver.Kinds {
		if kind.kind == name {
			answer := Answer{kind: kind, tables: &driver.tables}
			answer.PutCache(kind.open(config))
			return answer.text.String()
		}
	}
	Refuse("missing", "this driver has no kind %s", name)
	return ""
}

// drop forgets what nobody will name again.
func (driver *Driver) drop(message Message) {
	tables := &driver.tables
	if _, found := message.fields["caches"]; found {
		for _, number := range message.GetIntegers("caches") {
			content := tables.caches.get(number, "caches").content
			for part, cache := range tables.caches {
				if cache.owner != nil && cache.owner == content {
					delete(tables.caches, part)
				}
			}
		}
	}
	kitDrop(message, "caches", tables.caches)
	kitDrop(message, "snapshots", tables.snapshots)
	kitDrop(message, "saved", tables.saved)
}

func kitDrop[T any](message Message, name string, items kitTable[T]) {
	if _, found := message.fields[name]; !found {
		return
	}
	for _, number := range message.GetIntegers(name) {
		items.get(number, name)
		delete(items, number)
	}
}

func (driver *Driver) operate(operation string, message Message) string {
	asked := driver.tables.caches.get(message.GetInteger("cache"), "cache")
	run := asked.kind.operations[operation]
	if run == nil {
		Refuse("missing", "%s is not written for %s", operation, asked.kind.kind)
	}
	answer := Answer{kind: asked.kind, owner: asked.content, tables: &driver.tables}
	run(asked.content, message, &answer)
	return answer.text.String()
}

// kitOpenObject returns the rest of an object after its first field, on one line.
func kitOpenObject(object string) string {
	begin, end := strings.Index(object, "{"), strings.LastIndex(object, "}")
	if begin < 0 || end < begin {
		fmt.Fprintf(os.Stderr, "lockstep.go: not an object of JSON: %s\n", object)
		os.Exit(1)
	}
	inside := strings.NewReplacer("\n", " ", "\r", " ").Replace(object[begin+1 : end])
	if strings.TrimSpace(inside) == "" {
		return ""
	}
	return "," + inside
}
