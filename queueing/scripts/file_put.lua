-- Make an uploaded file known, once per idempotency key. Not allow-oom: a full store admits nothing.
-- ARGV[3] tenant, ARGV[4] JSON of put_file's file, ARGV[5] JSON: the fields of an idempotency key (see answered_already)
-- Reply: {'created' | 'exists' | 'conflict', id}
local tenant, file, asked = ARGV[3], cjson.decode(ARGV[4]), cjson.decode(ARGV[5])
local known_id, is_same = answered_already(asked)
if known_id then return { is_same and 'exists' or 'conflict', known_id } end
put_file(tenant, file)
remember_answer(asked, file.id)
return { 'created', file.id }
