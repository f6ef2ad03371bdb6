"""Mutation: a user's own kernel with one edit at a time. Would the gate have caught it?"""
