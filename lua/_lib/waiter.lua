-- Provides waiter_of(owner): the waiter behind an owner's name. On several masters,
-- each attempt of one wait has its own name, <waiter>~<number>. The place in the queue
-- has the waiter's name.
local function waiter_of(owner)
  return string.match(owner, '^[^~]*')
end
